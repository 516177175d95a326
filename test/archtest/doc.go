// Package archtest holds the rules about the project's packages: what each may
// import, and that its name and comment say what it is. It has nothing but tests.
package archtest
