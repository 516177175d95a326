package xdp

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type place4 -type place6 -type farm -type slot -type backend -type count -type device -type check -type member4 -type member6 -type span bpf xdp.bpf.c
