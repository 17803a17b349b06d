// Command bench measures how fast and how small Cloudless is, each figure beside a floor: the least that the same
// machine needs for the same thing at the same time. It runs the real binary as root, prints a table and appends the
// figures to build/bench.jsonl, unrounded and with their qualifications. It says which targets are met, and succeeds
// whether they are or not.
//
//	make bench
//	go run ./test/bench -only start_p50,write_1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cloudless/cloudless/test/bench/authz"
)

// measurement is one figure that can be measured.
type measurement struct {
	name, unit string
	// what is measured, and against which floor.
	what, floor string
	target      target
	measure     func(context.Context, *lab) (result, error)
}

var measurements = slices.Concat([]measurement{
	{
		name: "up_ready", unit: "ms", measure: measureUp, target: under(1000),
		what:  "cloudless up --detach on an existing data folder with one workload, from exec to node ready, median of 9",
		floor: "the binary executed to print its help",
	},
	{
		name: "start_p50", unit: "ms", measure: measureStart, target: ratioAtMost(1.5),
		what:  "from the API call that creates a workload to its replica running as a watch sees it, median of 20",
		floor: "create and start by the containerd client with the stock shim, on the same daemon, in turns",
	},
	{
		name: "shim_rss", unit: "MB", measure: measureShim, target: atMostFloorPlus(3),
		what:  "VmRSS of the shim of a running replica, median of 9",
		floor: "that of the stock shim, on the same daemon",
	},
	{
		name: "first_app", unit: "s", measure: measureFirstApp, target: under(5),
		what:  "from cloudless up on an empty data folder to the example app answering on its published port, median of 5",
		floor: "none",
	},
	{
		name: "start_100", unit: "s", measure: measureStartMany, target: ratioAtMost(1.3),
		what:  "from the API call that creates a workload of 100 replicas to all of them running, median of 5",
		floor: "100 direct starts, as many at once as the agent has, with the same network work by the containerd client with the stock shim, on the same daemon, in turns",
	},
	{
		name: "publish_connect", unit: "per s", measure: measurePublish, target: ratioAtLeast(0.85),
		what:  "new TCP connections from another machine through a published port, median of 9 rounds",
		floor: "the same to the same program behind a plain router that tracks connections, in turns",
	},
	{
		name: "vip_connect", unit: "per s", measure: measureConnect, target: ratioAtLeast(0.85),
		what:  "new TCP connections between replicas of one node by the virtual address of a service, among 1,000 others, median of 5 rounds",
		floor: "the same by the replicas' own addresses, in turns",
	},
	{
		name: "services_1000_program", unit: "ms", measure: measureProgram, target: under(400),
		what:  "writing 1,000 services of 10 endpoints of both families into a node's rules, which have none, median of 5",
		floor: "nft -f with the same chains and maps in the same run",
	},
	{
		name: "service_update", unit: "ms", measure: measureServiceUpdate, target: under(2),
		what:  "replacing an endpoint of one of 1,000 services in a node's rules, median of 1,000",
		floor: "none",
	},
	{
		name: "dns_qps", unit: "per s", measure: measureDNSRate, target: ratioAtLeast(0.7),
		what:  "lookups of 1,000 services by 32 clients with 8 waiting queries each that the resolver answers over UDP, median of 5 rounds",
		floor: "the same questions to a bare miekg/dns server that sends them back, in turns",
	},
	{
		name: "dns_p99", unit: "ms", measure: measureDNSTail, target: noTarget,
		what:  "from sending a lookup to its answer while 16 clients send at half of that rate, P99, median of 5 rounds; a lost one counts as a second",
		floor: "the same with the server that sends questions back, at the same rate, in turns",
	},
	{
		name: "overlay", unit: "Gbit/s", measure: measureOverlay, target: ratioAtLeast(0.9),
		what:  "one TCP connection between replicas on two nodes, which are network namespaces on one switch, median of 5",
		floor: "the same over bare wireguard-go between the same two namespaces, in turns",
	},
	{
		name: "relay", unit: "Gbit/s", measure: measureRelay, target: ratioAtLeast(0.5),
		what:  "one TCP connection between replicas on two nodes that reach each other only through the relay, median of 5",
		floor: "the same bytes through a process that copies from one TLS connection to another, in turns",
	},
	{
		name: "relay_failover", unit: "s", measure: measureFailover, target: under(3),
		what:  "from cutting the direct path of two replicas to the first answer through the relay, median of 5",
		floor: "none",
	},
	{
		name: "removed_node_cut", unit: "ms", measure: measureCut, target: under(1000),
		what:  "from node rm --force to the last packet of the removed node, whose agent is dead, that a replica of another node gets, median of 5",
		floor: "none",
	},
	{
		name: "dns_change", unit: "ms", measure: measureDNSChange, target: under(100),
		what:  "from the registration of an endpoint at a server to the first answer with it by the resolver of another node, median of 5",
		floor: "none",
	},
	{
		name: "mesh_5000_peers", unit: "MB", measure: measurePeers, target: under(30),
		what:  "additional VmRSS of a network process that knows 5,000 peers and has talked to 5",
		floor: "none",
	},
	{
		name: "idle_rss", unit: "MB", measure: measureIdleRSS, target: under(100),
		what:  "VmRSS of all processes together, with everything in them, after 30 s without anything to do",
		floor: "none",
	},
	{
		name: "after_work_rss", unit: "MB", measure: measureAfterWork, target: ratioAtMost(1.3),
		what:  "VmRSS of the same two minutes after 60 replicas were removed",
		floor: "that of the same process before them, after 30 s without anything to do",
	},
	{
		name: "idle_cpu", unit: "percent", measure: measureIdleCPU, target: under(1),
		what:  "of one core that everything in one process uses without anything to do, over 60 s",
		floor: "none",
	},
	{
		name: "binary", unit: "MB", measure: measureBinary, target: under(90),
		what:  "size of the stripped binary, the larger of linux/amd64 and linux/arm64",
		floor: "none",
	},
	{
		name: "write_1", unit: "per s", measure: measureWrites, target: ratioAtLeast(0.6),
		what:  "workloads created through the API of one server with fsync by 64 clients, median of rounds",
		floor: "an empty authenticated call by the same clients and bare raft on the same log store, measured in turns, one after the other: 1/(1/calls + 1/entries)",
	},
	{
		name: "write_3", unit: "per s", measure: measureWrites3, target: ratioAtLeast(0.6),
		what:  "workloads created through the API of three servers with fsync by 64 clients of package client spread over them, which call the leader once they know it, median of rounds",
		floor: "an empty authenticated call by the same clients and three bare rafts on the same log store, measured in turns, one after the other: 1/(1/calls + 1/entries)",
	},
	{
		name: "strangers", unit: "per s", measure: measureStrangers, target: ratioAtLeast(0.7),
		what:  "workloads updated through the API of one server by 64 clients with a token, while strangers with half a core attack it in 13 ways, median of 6 rounds",
		floor: "the same while that half core is in a busy loop, in turns",
	},
	{
		name: "snapshot_stall", unit: "ms", measure: measureSnapshotStall, target: under(50),
		what:  "the longest write of one client while one server writes a snapshot of 100,000 objects, median of 5 snapshots",
		floor: "the longest of as many writes without a snapshot, in turns",
	},
	{
		name: "leader_loss_p50", unit: "ms", measure: measureLeaderLossMedian, target: under(1500),
		what:  "three servers: from kill -9 of the leader to the next acknowledged write that was begun after it, median of 20",
		floor: "none",
	},
	{
		name: "leader_loss_max", unit: "ms", measure: measureLeaderLossMax, target: under(3000),
		what:  "the longest of the same",
		floor: "none",
	},
	{
		name: "nodes_5000_cores", unit: "cores", measure: measureFleetCores, target: under(1),
		what:  "CPU time of the only server per second while 5000 simulated nodes report every second, over 2 minutes",
		floor: "none",
	},
	{
		name: "nodes_5000_false", unit: "nodes", measure: measureFleetFalse, target: exactly(0),
		what:  "of those, which a watch of the API ever saw leave the state ready without having been killed",
		floor: "none",
	},
	{
		name: "nodes_5000_offline_p95", unit: "s", measure: measureFleetOffline, target: under(5),
		what:  "from the death of 500 of them at once, half with broken and half with silent connections, to offline as a watch of the API sees it, P95",
		floor: "none",
	},
	{
		name: "endpoint_fanout_p95", unit: "ms", measure: measureFanout, target: under(100),
		what:  "1,000 simulated nodes that each follow 20 of 1,000 services with 10 endpoints each, while 100 endpoints a second change: from the API call to the node, P95 of one minute",
		floor: "none",
	},
	{
		name: "authz_cost", unit: "us", measure: measureAuthorization, target: under(5),
		what:  "one decision whether a user with 1,000 bindings of 100 roles in 100 namespaces may do something, median of 5 rounds",
		floor: "none",
	},
}, routeMeasurements, trafficMeasurements, secretMeasurements, rolloutMeasurements, lossMeasurements, schedulerMeasurements)

func measureAuthorization(context.Context, *lab) (result, error) {
	decision, adding, err := authz.Cost()
	return result{
		value: float64(decision.Nanoseconds()) / 1000,
		notes: []string{fmt.Sprintf("to add up the roles, once after each change: %.0f us", float64(adding.Nanoseconds())/1000)},
	}, err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	chosen, size, err := parse(args, stderr)
	if err != nil {
		return err
	}
	l, err := newLab(ctx, stderr)
	if err != nil {
		return err
	}
	defer l.close()
	l.crowd = size
	log := filepath.Join("build", "bench.jsonl")
	var figures []figure
	for _, m := range chosen {
		l.say("measuring %s", m.name)
		r, err := m.measure(ctx, l)
		if err != nil {
			return errors.Join(fmt.Errorf("measure %s: %w", m.name, err), printTable(stdout, figures))
		}
		f := m.figure(r)
		if err := appendFigure(log, f); err != nil {
			return err
		}
		figures = append(figures, f)
	}
	return printTable(stdout, figures)
}

func parse(args []string, stderr io.Writer) (chosen []measurement, size crowd, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "measure these `names` alone, separated by commas")
	size.flags(flags)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Measures bin/cloudless as root; run make build first.\n\n  go run ./test/bench -only start_p50,write_1\n\n")
		flags.PrintDefaults()
		fmt.Fprintln(stderr)
		for _, m := range slices.Concat(measurements, crowdMeasurements, objectMeasurements) {
			fmt.Fprintf(stderr, "%s [%s]: %s.\n  Floor: %s. Target: %s.\n", m.name, m.unit, m.what, m.floor, m.target.text)
		}
	}
	if err := flags.Parse(args); err != nil {
		return nil, size, err
	}
	if flags.NArg() > 0 {
		return nil, size, fmt.Errorf("unknown argument %q: name figures with -only", flags.Arg(0))
	}
	if err := size.check(); err != nil {
		return nil, size, err
	}
	chosen, err = choose(*only)
	return chosen, size, err
}

// choose returns the named measurements in their usual order; if none is named, all but those of the two-million
// challenge and of the object store.
func choose(only string) ([]measurement, error) {
	if only == "" {
		return measurements, nil
	}
	names := strings.Split(only, ",")
	var chosen []measurement
	for _, m := range slices.Concat(measurements, crowdMeasurements, objectMeasurements) {
		if slices.Contains(names, m.name) {
			chosen = append(chosen, m)
			names = slices.DeleteFunc(names, func(n string) bool { return n == m.name })
		}
	}
	if len(names) > 0 {
		return nil, fmt.Errorf("there is no figure %s: see -h", strings.Join(names, ", "))
	}
	return chosen, nil
}
