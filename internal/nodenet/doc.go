// Package nodenet is the network of one node: a bridge, a network namespace for
// each replica with an address of both families on that bridge, the way out, and
// ports of the machine that lead in. It is made by netlink and nftables alone.
//
// What it guarantees:
//   - An address belongs to one endpoint until that is detached, across restarts
//     of the process and of the machine: it is on disk before it is used.
//   - The rules are one table of this cloud's own and are replaced in one
//     transaction; what was established before a change goes on. Two clouds on
//     one machine share neither names nor rules.
//   - What somebody else takes away (rules, the bridge, a link) comes back at
//     once, without a poll.
//   - A published port is held: whoever comes later hears that it is in use, and
//     whoever was there before is named and not disturbed.
//   - What runs does not need this process: rules and namespaces stay when it
//     ends. Only [::1], to which the kernel cannot translate, is served by it.
//
// It must not know of workloads, servers, drivers or the API.
package nodenet
