package usage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// A restarted replica has smaller totals than before.
func TestRatesOfAReplicaThatBeganAgain(t *testing.T) {
	r := newRates()
	r.see(usageAt(0, &cloudlessv1.ReplicaUsage{Replica: "a", ReadBytes: 1 << 20, ReceivedBytes: 5}))
	if r.complete() {
		t.Error("one measurement makes a rate")
	}
	r.see(usageAt(1, &cloudlessv1.ReplicaUsage{Replica: "a", ReadBytes: 1 << 10, ReceivedBytes: 6}))
	if now := r.now["a"]; !r.complete() || now.readBytes != 0 || now.received != 1 {
		t.Errorf("the rate is %+v", now)
	}
	r.see(usageAt(1, &cloudlessv1.ReplicaUsage{Replica: "a", ReadBytes: 1 << 10, ReceivedBytes: 6})) // the same measurement again
	if r.now["a"].received != 1 {
		t.Errorf("the rate became %+v", r.now["a"])
	}
	r.see(usageAt(2))
	if len(r.last) != 0 || len(r.now) != 0 {
		t.Error("a replica that is gone is remembered")
	}
}

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0", 1023: "1023", 1024: "1.0Ki", 1536: "1.5Ki", 10 << 10: "10Ki", 1 << 20: "1.0Mi", 1023.9 * 1024: "1.0Mi", 5 << 40: "5.0Ti",
	} {
		if got := humanBytes(n); got != want {
			t.Errorf("%v bytes are %s, want %s", n, got, want)
		}
	}
}

func TestTopSortsAndRemembers(t *testing.T) {
	v := newTopView(terminal.Style{})
	frames := []*cloudlessv1.Usage{
		usageAt(0, &cloudlessv1.ReplicaUsage{Replica: "web-a"}, &cloudlessv1.ReplicaUsage{Replica: "web-b"}),
		usageAt(2, &cloudlessv1.ReplicaUsage{Replica: "web-a", Cpu: 0.5, MemoryBytes: 12 << 20}, &cloudlessv1.ReplicaUsage{Replica: "web-b", Cpu: 1.25, MemoryBytes: 1 << 20}),
	}
	for range historyLength + 5 {
		v.see(frames[0])
	}
	v.see(frames[1])
	if got := len(v.history["cpu web-a"]); got != historyLength {
		t.Errorf("it remembers %d values", got)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	names := func(by order) (found []string) {
		for _, line := range v.lines(200, by, now) {
			if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "default/") {
				found = append(found, name)
			}
		}
		return found
	}
	if got := fmt.Sprint(names(byCPU)); got != "[default/web-b default/web-a]" {
		t.Errorf("by CPU it is %s", got)
	}
	if got := fmt.Sprint(names(byMemory)); got != "[default/web-a default/web-b]" {
		t.Errorf("by memory it is %s", got)
	}
	v.see(usageAt(3))
	if len(v.history) != 2 { // the node's own
		t.Errorf("replicas that are gone are remembered: %v", v.history)
	}
}

// usageAt is a frame some seconds after the first one, of node n1.
func usageAt(second int, replicas ...*cloudlessv1.ReplicaUsage) *cloudlessv1.Usage {
	at := timestamppb.New(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
	for _, u := range replicas {
		u.Uid, u.Namespace, u.Time = u.GetReplica(), "default", at
	}
	return &cloudlessv1.Usage{Time: at, Replicas: replicas, Nodes: []*cloudlessv1.NodeUsage{{Node: "n1"}}}
}

// A replica with a limit of its bandwidth is shown with its share of it, and with what the limit holds back.
func TestShareOfTheBandwidth(t *testing.T) {
	r := newRates()
	r.see(usageAt(0, &cloudlessv1.ReplicaUsage{Replica: "a", BandwidthLimit: 8e6}))
	u := &cloudlessv1.ReplicaUsage{Replica: "a", BandwidthLimit: 8e6, ReceivedBytes: 1e6, SentBytes: 250_000, ReceivedDropped: 3, SentDelayed: 40}
	r.see(usageAt(1, u))
	if got := r.cells(u)[3]; got != "977Ki/s / 244Ki/s (100% / 25% of 8M, 40 delayed/s, 3 dropped/s)" {
		t.Errorf("got %s", got)
	}
	quiet := &cloudlessv1.ReplicaUsage{Replica: "a", BandwidthLimit: 8e6, ReceivedBytes: 1e6, SentBytes: 250_000, ReceivedDropped: 3, SentDelayed: 40}
	r.see(usageAt(2, quiet))
	if got := r.cells(quiet)[3]; got != "0/s / 0/s (0% / 0% of 8M)" {
		t.Errorf("got %s", got)
	}
}
