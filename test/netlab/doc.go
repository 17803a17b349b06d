// Package netlab proves that the network of a cluster works on every kind of network that machines are connected to.
// Its machines are network namespaces, and each runs the real binary:
//
//	                        the internet (bridge, IPv4 and IPv6)
//	  ┌─────────┬─────────┬──────────┬──────────┬──────┬──────┬────────┐
//	server    home A    home B   symmetric   MTU 1280  six  noudp   laptop
//	         (NAT)     (NAT)      (NAT)      (tunnel)  IPv6  no UDP  moves from
//	        ┌──┴──┐       │          │          │      only          here to home B
//	      lan-a lan-b    nat        sym       narrow
//
// Homes A and B use the same private addresses, as real homes do. A daemon runs on every machine. Real tools (curl,
// dig, iperf3) run in the network namespaces of its replicas. tcpdump sees every wire that two machines share.
//
// The lab asserts what works and which way packets take, never how long something takes.
package netlab
