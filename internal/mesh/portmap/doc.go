// Package portmap asks the router of a private network to lead a UDP port of its public address to this machine, by
// PCP, NAT-PMP or UPnP IGD.
//
// It talks only to the address of the default gateway, and trusts nothing that the gateway says beyond that address: an
// answer is bounded in size, and never makes it connect to another machine. It must not know what the port is for.
package portmap
