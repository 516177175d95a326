// Package image has the container images of the lab: it makes those that pods name most from
// programs of pinned Go modules and from Debian's packages, and serves them, and others from
// archives, as a registry does. So nothing is pulled from any.
package image
