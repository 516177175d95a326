// Package config is the source of a balancer that is configured as nftlb is: by a JSON document, in
// a file or over HTTP (docs/nftlb.md says what both are). It delivers model.Farm and
// model.FarmList.
//
// A request is a change: it is read onto copies of the objects that it touches, checked as a whole,
// and takes effect in one step or not at all. Its cost is that of the objects that it touches,
// whatever the number of others. An answer is given once the kernel has the change and the state
// file holds it; changes that wait at the same time share both.
package config
