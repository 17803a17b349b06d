// Package nodenet is the network of one node: a bridge, a network namespace for each
// replica with an address of both families on that bridge, the uplink, and ports of the
// machine that lead in. It uses only netlink and nftables.
//
// What it guarantees:
// - An address belongs to one endpoint until that is detached, across restarts of the
// process and of the machine: it is on disk before it is used.
// - The rules are one table of this cloud, and a change is one transaction; established
// connections survive it. Two clouds on one machine share neither names nor rules.
// - A service's virtual addresses and published ports lead to its backends, or refuse at once.
// - What another program removes (rules, the bridge, a link) is restored at once, without
// polling.
// - A published port is held: programs that come later get "address in use", and a program
// that was there before is named and not disturbed.
// - What runs does not need this process: rules and namespaces stay when it ends. Only
// [::1], to which the kernel cannot translate, is served by it.
//
// It must not know of workloads, servers, drivers or the API.
package nodenet
