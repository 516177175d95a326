package sockets

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cflags "-O2 -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type endpoint -type frontend -type page -type endpoints -type serving -type translation -type found bpf sockets.bpf.c
