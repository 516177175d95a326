// Package importer turns the configuration of other balancers into ours: the output of
// `ipvsadm -Sn`, a keepalived.conf, a file of nftlb. It reads text, and the files that a
// keepalived.conf includes.
//
// Whatever cannot be carried over as it was is in a Note, with its line.
package importer
