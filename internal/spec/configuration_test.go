package spec

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func configuration(c *v1.ClusterSpec) *v1.Configuration {
	return &v1.Configuration{ApiVersion: APIVersion, Kind: KindConfiguration, Spec: &v1.ConfigurationSpec{Number: 1, Cluster: c}}
}

// Every refusal names the field, the reason and the way out, and is the same in a request
// that contains the configuration.
func TestHarmfulConfigurationsAreRefused(t *testing.T) {
	for about, c := range map[string]struct {
		given *v1.ClusterSpec
		want  string
	}{
		"no settings":                   {nil, "spec.cluster: is missing: give the settings"},
		"two voters":                    {&v1.ClusterSpec{DesiredVoters: new(int32(2))}, "spec.cluster.desiredVoters: must be 1, 3, 5 or 7"},
		"no voters":                     {&v1.ClusterSpec{DesiredVoters: new(int32(0))}, "spec.cluster.desiredVoters: must be 1, 3, 5 or 7: without a voter nothing can be agreed on"},
		"fewer than no voters":          {&v1.ClusterSpec{DesiredVoters: new(int32(-1))}, "spec.cluster.desiredVoters: must be 1, 3, 5 or 7"},
		"not a range":                   {&v1.ClusterSpec{RangeV4: "ten"}, "spec.cluster.rangeV4: must be a range of IPv4 addresses such as 10.64.0.0/10"},
		"the wrong family":              {&v1.ClusterSpec{RangeV4: "fd00::/48"}, "spec.cluster.rangeV4: must be a range of IPv4"},
		"a range with an address in it": {&v1.ClusterSpec{RangeV4: "10.1.2.3/16"}, "with nothing but zeros behind its length"},
		"public addresses":              {&v1.ClusterSpec{RangeV4: "8.8.0.0/16"}, "spec.cluster.rangeV4: must be a range of private IPv4 addresses"},
		"more than is private":          {&v1.ClusterSpec{RangeV4: "192.0.0.0/8"}, "within 10.0.0.0/8"},
		"loopback":                      {&v1.ClusterSpec{RangeV4: "127.0.0.0/16"}, "spec.cluster.rangeV4: must be a range of private"},
		"global IPv6":                   {&v1.ClusterSpec{RangeV6: "2001:db8::/48"}, "spec.cluster.rangeV6: must be a range of unique local IPv6 addresses, within fd00::/8"},
		"too small for a node":          {&v1.ClusterSpec{RangeV4: "10.1.2.0/25"}, "spec.cluster.rangeV4: is too small: every node needs a /24"},
		"too small for a node of IPv6":  {&v1.ClusterSpec{RangeV6: "fd00::/72"}, "spec.cluster.rangeV6: is too small: every node needs a /64"},
		"too small for the limit":       {&v1.ClusterSpec{RangeV4: "10.1.0.0/23", Limits: &v1.ClusterLimits{Nodes: new(int32(3))}}, "spec.cluster.rangeV4: has room for 2 nodes, and limits.nodes allows 3"},
		"a heartbeat that is too fast":  {&v1.ClusterSpec{Liveness: &v1.Liveness{Heartbeat: "50ms"}}, "spec.cluster.liveness.heartbeat: must be between 100ms and 1m"},
		"no length of time":             {&v1.ClusterSpec{Liveness: &v1.Liveness{Silence: "soon"}}, "spec.cluster.liveness.silence: must be a length of time such as"},
		"silence of two heartbeats":     {&v1.ClusterSpec{Liveness: &v1.Liveness{Silence: "2s"}}, "spec.cluster.liveness.silence: silence must be longer than two heartbeats"},
		"a heartbeat of the silence":    {&v1.ClusterSpec{Liveness: &v1.Liveness{Heartbeat: "3s"}}, "spec.cluster.liveness.heartbeat: silence must be longer than two heartbeats"},
		"no time to come back":          {&v1.ClusterSpec{Liveness: &v1.Liveness{Reconnect: "0s"}}, "spec.cluster.liveness.reconnect: must be between 1s and 24h"},
		"a class twice":                 {&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Name: "a", Labels: "x"}, {Name: "a", Labels: "y"}}}, "spec.cluster.nodeClasses[1].name: is the name of spec.cluster.nodeClasses[0] too"},
		"a class of no nodes":           {&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Name: "a", Labels: "=b"}}}, "spec.cluster.nodeClasses[0].labels: \"=b\" is not a label selector"},
		"a class of all nodes":          {&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Name: "a"}}}, "spec.cluster.nodeClasses[0].labels: is missing"},
		"a class without a name":        {&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Labels: "x"}}}, "spec.cluster.nodeClasses[0].name: is missing"},
		"a class that hears too rarely": {&v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Name: "a", Labels: "x", Liveness: &v1.Liveness{Heartbeat: "2s"}}}}, "spec.cluster.nodeClasses[0].liveness.heartbeat: silence must be longer"},
		"nothing is kept":               {&v1.ClusterSpec{Retention: &v1.Retention{Events: "1s"}}, "spec.cluster.retention.events: must be between 1m and"},
		"hardly an event":               {&v1.ClusterSpec{Retention: &v1.Retention{MaxEvents: new(int32(5))}}, "spec.cluster.retention.maxEvents: must be between 100 and 1000000"},
		"no event":                      {&v1.ClusterSpec{Retention: &v1.Retention{MaxEvents: new(int32(0))}}, "spec.cluster.retention.maxEvents: must be between 100 and 1000000"},
		"no revision":                   {&v1.ClusterSpec{Retention: &v1.Retention{Revisions: new(int32(0))}}, "spec.cluster.retention.revisions: must be between 1 and 1000"},
		"no node":                       {&v1.ClusterSpec{Limits: &v1.ClusterLimits{Nodes: new(int32(0))}}, "spec.cluster.limits.nodes: must be between 1 and 100000"},
		"no workload":                   {&v1.ClusterSpec{Limits: &v1.ClusterLimits{Workloads: new(int32(0))}}, "spec.cluster.limits.workloads: must be between 1 and 1000000"},
		"no replica":                    {&v1.ClusterSpec{Limits: &v1.ClusterLimits{ReplicasPerWorkload: new(int32(0))}}, "spec.cluster.limits.replicasPerWorkload: must be between 1 and 100000"},
		"nothing is promised":           {&v1.ClusterSpec{Overcommit: &v1.Overcommit{Memory: new(int32(0))}}, "spec.cluster.overcommit.memory: must be between 1 and 10000"},
		"no replacement":                {&v1.ClusterSpec{Failover: &v1.Failover{Replicas: new(int32(0))}}, "spec.cluster.failover.replicas: must be between 1 and 100000"},
		"replacements within no time":   {&v1.ClusterSpec{Failover: &v1.Failover{Per: "10ms"}}, "spec.cluster.failover.per: must be between 1s and 1h"},
		"replacements within a day":     {&v1.ClusterSpec{Failover: &v1.Failover{Per: "24h"}}, "spec.cluster.failover.per: must be between 1s and 1h"},
		"no time of replacements":       {&v1.ClusterSpec{Failover: &v1.Failover{Per: "often"}}, "spec.cluster.failover.per: must be a length of time such as"},
		"moves for no gain":             {&v1.ClusterSpec{Rebalance: &v1.Rebalance{MinGain: new(0.0)}}, "spec.cluster.rebalance.minGain: must be between 0.01 and 1"},
		"no moves":                      {&v1.ClusterSpec{Rebalance: &v1.Rebalance{Replicas: new(int32(0))}}, "spec.cluster.rebalance.replicas: must be between 1 and 1000"},
		"moves within a day":            {&v1.ClusterSpec{Rebalance: &v1.Rebalance{Per: "24h"}}, "spec.cluster.rebalance.per: must be between 1s and 1h"},
		"moves without a rest":          {&v1.ClusterSpec{Rebalance: &v1.Rebalance{Rest: "0s"}}, "spec.cluster.rebalance.rest: must be between 1s and 24h"},
		"a limit that is none":          {&v1.ClusterSpec{Limits: &v1.ClusterLimits{Workloads: new(int32(-1))}}, "spec.cluster.limits.workloads: must be between 1 and 1000000"},
		"a default beyond the limit":    {&v1.ClusterSpec{Defaults: &v1.WorkloadDefaults{Requests: &v1.ResourceAmounts{Cpu: "2"}, Limits: &v1.ResourceAmounts{Cpu: "1"}}}, "spec.cluster.defaults.requests.cpu: must be at most the limit"},
		"a default that runs nothing":   {&v1.ClusterSpec{Defaults: &v1.WorkloadDefaults{Limits: &v1.ResourceAmounts{Memory: "1Mi"}}}, "spec.cluster.defaults.limits.memory: a memory limit of 1Mi is too small"},
		"a default of no signal":        {&v1.ClusterSpec{Defaults: &v1.WorkloadDefaults{Stop: &v1.Stop{Signal: "SIGNOW"}}}, "spec.cluster.defaults.stop.signal: must be SIGTERM"},
		"pauses the wrong way round":    {&v1.ClusterSpec{Defaults: &v1.WorkloadDefaults{Restart: &v1.Restart{Backoff: "2m"}}}, "spec.cluster.defaults.restart.backoff: must be at most maxBackoff"},
	} {
		err := Validate(configuration(c.given))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", about, err, c.want)
			continue
		}
		if carried := Validate(&v1.SetConfigurationRequest{Configuration: configuration(c.given)}); carried == nil || carried.Error() != err.Error() {
			t.Errorf("%s: a request is refused with %v", about, carried)
		}
	}
}

func TestEmptyConfigurationIsValid(t *testing.T) {
	if err := Validate(configuration(&v1.ClusterSpec{})); err != nil {
		t.Error(err)
	}
	all := &v1.ClusterSpec{
		RangeV4: "10.0.0.0/8", RangeV6: "fd00::/8", DesiredVoters: new(int32(7)),
		Liveness:    &v1.Liveness{Heartbeat: "200ms", Silence: "500ms", Reconnect: "2s"},
		NodeClasses: []*v1.NodeClass{{Name: "laptops", Labels: "kind=laptop", Liveness: &v1.Liveness{Reconnect: "5m"}}},
		Retention:   &v1.Retention{Replicas: "1h", Events: "1m", MaxEvents: new(int32(100)), Revisions: new(int32(1)), Tokens: "720h", Images: "1m"},
		Defaults:    &v1.WorkloadDefaults{Requests: &v1.ResourceAmounts{Cpu: "100m"}, Limits: &v1.ResourceAmounts{Memory: "64Mi"}},
		Limits:      &v1.ClusterLimits{Nodes: new(int32(3)), Workloads: new(int32(10)), ReplicasPerWorkload: new(int32(5))},
	}
	if err := Validate(configuration(all)); err != nil {
		t.Error(err)
	}
}

func TestConfigurationFileNamesLineAndColumn(t *testing.T) {
	for given, want := range map[string]string{
		"kind: Configuration\nspec:\n  cluster:\n    liveness:\n      silence: 1s\n": "c.yaml:5:16: spec.cluster.liveness.silence: silence must be longer",
		"kind: Configuration\nspec:\n  cluster:\n    desiredVoter: 3\n":              "c.yaml:4:5: spec.cluster.desiredVoter: is not a known field; did you mean desiredVoters?",
		"kind: Configuration\nspec:\n  cluster:\n    desiredVoters: 4\n":             "c.yaml:4:20: spec.cluster.desiredVoters: must be 1, 3, 5 or 7",
		"kind: Configuration\nspec:\n  cluster:\n    desiredVoters: 0\n":             "c.yaml:4:20: spec.cluster.desiredVoters: must be 1, 3, 5 or 7: without a voter",
		"kind: Configuration\nspec:\n  cluster:\n    limits: {nodes: 0}\n":           "c.yaml:4:21: spec.cluster.limits.nodes: must be between 1 and 100000",
		"kind: Workload\n":                `c.yaml:1:7: kind: "Workload" cannot be in a file; a file may hold Configuration`,
		"":                                "c.yaml: must hold one object of kind Configuration, and has 0",
		"kind: Configuration\nspec: {}\n": "c.yaml:2:1: spec.cluster: is missing",
	} {
		if _, err := DecodeConfiguration("c.yaml", []byte(given)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", given, err, want)
		}
	}
	data, err := EncodeYAML(configuration(&v1.ClusterSpec{DesiredVoters: new(int32(5))}))
	if err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeConfiguration("c.yaml", data); err != nil || back.GetSpec().GetCluster().GetDesiredVoters() != 5 {
		t.Errorf("what was written is read as %v, %v", back, err)
	}
}

func TestDiffOfConfigurationsIsByKey(t *testing.T) {
	a := &v1.ClusterSpec{
		DesiredVoters: new(int32(5)), Liveness: &v1.Liveness{Silence: "5s"},
		NodeClasses: []*v1.NodeClass{{Name: "a", Labels: "x"}, {Name: "b", Labels: "y"}, {Name: "c", Labels: "z"}},
	}
	b := &v1.ClusterSpec{
		Liveness: &v1.Liveness{Silence: "5000ms"}, Limits: &v1.ClusterLimits{Nodes: new(int32(3))},
		NodeClasses: []*v1.NodeClass{{Name: "b", Labels: "y", Liveness: &v1.Liveness{Silence: "1m"}}, {Name: "a", Labels: "x"}, {Name: "d", Labels: "z"}},
	}
	want := "[{desiredVoters 5 } {limits.nodes  3} {nodeClasses.b.liveness.silence  1m} {nodeClasses.d.labels  z} {nodeClasses.c.labels z } {nodeClasses a,b b,a}]"
	if got := fmt.Sprint(DiffCluster(a, b)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if diff := DiffCluster(a, a); len(diff) > 0 {
		t.Errorf("differs from itself in %v", diff)
	}
}

func TestDefaultsFillOnlyUnsetFields(t *testing.T) {
	defaults := &v1.WorkloadDefaults{
		Requests: &v1.ResourceAmounts{Cpu: "200m", Memory: "64Mi"}, Limits: &v1.ResourceAmounts{Cpu: "500m", Memory: "128Mi"},
		Restart: &v1.Restart{Policy: "on-failure", MaxBackoff: "5s"}, Stop: &v1.Stop{Grace: "1m"},
	}
	for about, c := range map[string]struct {
		given *v1.WorkloadSpec
		want  string
	}{
		"says nothing":            {&v1.WorkloadSpec{}, "200m 500m 64Mi 128Mi on-failure 1s 5s SIGTERM 1m"},
		"a limit below a request": {&v1.WorkloadSpec{Resources: &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: "100m"}}}, "100m 100m 64Mi 128Mi on-failure 1s 5s SIGTERM 1m"},
		"a request above a limit": {&v1.WorkloadSpec{Resources: &v1.Resources{Requests: &v1.ResourceAmounts{Memory: "1Gi"}}}, "200m 500m 1Gi 1Gi on-failure 1s 5s SIGTERM 1m"},
		"a longer pause":          {&v1.WorkloadSpec{Restart: &v1.Restart{Backoff: "10s"}}, "200m 500m 64Mi 128Mi on-failure 10s 10s SIGTERM 1m"},
		"its own":                 {&v1.WorkloadSpec{Restart: &v1.Restart{Policy: "never"}, Stop: &v1.Stop{Grace: "2s"}}, "200m 500m 64Mi 128Mi never 1s 5s SIGTERM 2s"},
	} {
		w := WithDefaults(c.given, defaults)
		r := w.GetResources()
		got := fmt.Sprint(r.GetRequests().GetCpu(), " ", r.GetLimits().GetCpu(), " ", r.GetRequests().GetMemory(), " ", r.GetLimits().GetMemory(), " ",
			w.GetRestart().GetPolicy(), " ", w.GetRestart().GetBackoff(), " ", w.GetRestart().GetMaxBackoff(), " ", w.GetStop().GetSignal(), " ", w.GetStop().GetGrace())
		if got != c.want {
			t.Errorf("%s: %s, want %s", about, got, c.want)
		}
	}
}

// Resources that can only be requested have defaults, too.
func TestEveryRequestHasADefault(t *testing.T) {
	defaults := &v1.WorkloadDefaults{Requests: &v1.ResourceAmounts{Disk: "1Gi", Bandwidth: "10M"}}
	for about, c := range map[string]struct {
		given *v1.ResourceAmounts
		want  string
	}{
		"says nothing": {nil, "1Gi 10M"},
		"its own disk": {&v1.ResourceAmounts{Disk: "2Gi"}, "2Gi 10M"},
		"its own link": {&v1.ResourceAmounts{Bandwidth: "1G"}, "1Gi 1G"},
	} {
		r := WithDefaults(&v1.WorkloadSpec{Resources: &v1.Resources{Requests: c.given}}, defaults).GetResources().GetRequests()
		if got := r.GetDisk() + " " + r.GetBandwidth(); got != c.want {
			t.Errorf("%s: %q, want %q", about, got, c.want)
		}
	}
}

// Any valid defaults and any valid workload give a valid result.
func TestDefaultsNeverMakeAWorkloadInvalid(t *testing.T) {
	amounts := rapid.Custom(func(t *rapid.T) *v1.ResourceAmounts {
		return &v1.ResourceAmounts{
			Cpu:    rapid.SampledFrom([]string{"", "10m", "250m", "0.25", "1", "2"}).Draw(t, "cpu"),
			Memory: rapid.SampledFrom([]string{"", "4Mi", "64Mi", "1Gi", "1.5Gi"}).Draw(t, "memory"),
		}
	})
	restart := rapid.Custom(func(t *rapid.T) *v1.Restart {
		return &v1.Restart{
			Backoff:    rapid.SampledFrom([]string{"", "100ms", "1s", "2m"}).Draw(t, "backoff"),
			MaxBackoff: rapid.SampledFrom([]string{"", "100ms", "1s", "2m"}).Draw(t, "maxBackoff"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		w := &v1.Workload{Metadata: &v1.Metadata{Name: "w"}, Spec: &v1.WorkloadSpec{
			Image: "hello:1", Resources: &v1.Resources{Requests: amounts.Draw(t, "requests"), Limits: amounts.Draw(t, "limits")}, Restart: restart.Draw(t, "restart"),
		}}
		d := &v1.WorkloadDefaults{Requests: amounts.Draw(t, "default requests"), Limits: amounts.Draw(t, "default limits"), Restart: restart.Draw(t, "default restart")}
		if Validate(w) != nil || Validate(configuration(&v1.ClusterSpec{Defaults: d})) != nil {
			t.Skip("not valid to begin with")
		}
		filled := proto.CloneOf(w)
		filled.Spec = WithDefaults(w.GetSpec(), d)
		if err := Validate(filled); err != nil {
			t.Fatalf("%v with %v becomes %v: %v", w.GetSpec(), d, filled.GetSpec(), err)
		}
		if again := WithDefaults(filled.GetSpec(), d); !proto.Equal(again, filled.GetSpec()) {
			t.Fatalf("filled once it is %v, twice %v", filled.GetSpec(), again)
		}
	})
}

func TestSettings(t *testing.T) {
	c := &v1.ClusterSpec{}
	for _, s := range []string{
		"desiredVoters=5", "liveness.silence = 5s", "nodeClasses.laptops.labels=kind=laptop",
		"nodeClasses.laptops.liveness.reconnect=5m", "spec.cluster.limits.nodes=7", "defaults.stop.grace=1m", "failover.replicas=20",
	} {
		key, value, err := ParseSetting(s)
		if err == nil {
			err = Set(c, key, value)
		}
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	values := map[string]Setting{}
	for _, s := range Settings(c) {
		values[s.Key] = s
	}
	for key, want := range map[string]Setting{
		"desiredVoters":                          {Value: "5"},
		"liveness.silence":                       {Value: "5s"},
		"liveness.heartbeat":                     {Value: "1s", Default: true},
		"nodeClasses.laptops.labels":             {Value: "kind=laptop"},
		"nodeClasses.laptops.liveness.silence":   {Value: "5s", Default: true},
		"nodeClasses.laptops.liveness.reconnect": {Value: "5m"},
		"limits.nodes":                           {Value: "7"},
		"defaults.limits.cpu":                    {Value: "none", Default: true},
		"defaults.stop.grace":                    {Value: "1m"},
		"failover.replicas":                      {Value: "20"},
		"failover.per":                           {Value: "10s", Default: true},
	} {
		if want.Key = key; values[key] != want {
			t.Errorf("%s is %+v, want %+v", key, values[key], want)
		}
	}
	for _, key := range []string{"desiredVoters", "liveness.silence", "nodeClasses.laptops", "limits", "defaults.stop.grace", "retention.events", "nodeClasses.nobody", "failover.replicas"} {
		if err := Set(c, key, ""); err != nil {
			t.Errorf("unset %s: %v", key, err)
		}
	}
	if !proto.Equal(NormalizedCluster(c), &v1.ClusterSpec{}) {
		t.Errorf("after all was unset there is %v", c)
	}
	for key, want := range map[string]string{
		"liveness.silense": "not a setting", "liveness.silence.x": "not a setting", "retention.x": "not a setting", "nodeClasses.a.name": "not a setting",
		"nodeClasses.a.x": "not a setting", "liveness": "not one setting but several: set one of them, such as liveness.heartbeat",
		"nodeClasses": "such as nodeClasses.NAME.labels", "nodeClasses.a": "such as nodeClasses.a.labels=kind=laptop", "desiredVoters": "must be a whole number",
	} {
		if err := Set(c, key, "five"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s=five: %v, want %q", key, err, want)
		}
	}
	if _, _, err := ParseSetting("liveness.silence"); err == nil || !strings.Contains(err.Error(), "KEY=VALUE") {
		t.Errorf("without a value: %v", err)
	}
}

// Any input is set or refused without a panic, and what is set is shown.
func FuzzSetting(f *testing.F) {
	for _, s := range []string{"desiredVoters=5", "nodeClasses.a.labels=x=y", "nodeClasses.a=", "liveness.silence=", "a.b.c=", "nodeClasses..labels=x", "=", "limits.nodes=99999999999"} {
		f.Add(s)
	}
	for _, s := range []string{"desiredVoters=0", "weights.cost=0", "nodeClasses.a.overcommit.cpu=0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, value, err := ParseSetting(s)
		if err != nil {
			return
		}
		c := &v1.ClusterSpec{}
		err = Set(c, key, value)
		if unknown, ok := errors.AsType[*UnknownSettingError](err); ok && len(unknown.Known) == 0 {
			t.Fatal("there are always settings")
		}
		if err != nil {
			if proto.Size(NormalizedCluster(c)) != 0 {
				t.Fatalf("%q was refused with %v and has set %v", s, err, c)
			}
			return
		}
		_ = Validate(configuration(c)) // may refuse, must not panic
		for _, shown := range Settings(c) {
			if shown.Key == key && shown.Default && value != "" {
				t.Fatalf("%q is shown as %+v", s, shown)
			}
		}
	})
}

// A weight of 0 is explicit, a missing one has its default, and not all of them can be 0.
func TestWeightsAreSettings(t *testing.T) {
	shown := func(c *v1.ClusterSpec) (all string) {
		for _, s := range Settings(c) {
			if key, is := strings.CutPrefix(s.Key, "weights."); is {
				all += fmt.Sprintf("%s=%s %t, ", key, s.Value, s.Default)
			}
		}
		return all
	}
	c := &v1.ClusterSpec{}
	set := func(key, value string) {
		t.Helper()
		if err := Set(c, "weights."+key, value); err != nil {
			t.Fatal(err)
		}
	}
	set("cost", "0.9")
	set("network", "0")
	if got := shown(c); got != "locality=0.25 true, reliability=0.3 true, cost=0.9 false, utilization=0.2 true, network=0 false, " {
		t.Errorf("shown are %s", got)
	}
	if changes := DiffCluster(&v1.ClusterSpec{}, c); len(changes) != 2 {
		t.Errorf("the difference is %v", changes)
	}
	if err := Validate(configuration(c)); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"locality", "reliability", "cost", "utilization"} {
		set(key, "0")
	}
	if err := Validate(configuration(c)); err == nil || !strings.Contains(err.Error(), "spec.cluster.weights: must not all be 0") {
		t.Errorf("weights of nothing: %v", err)
	}
	for _, key := range []string{"locality", "reliability", "cost", "utilization", "network"} {
		set(key, "")
	}
	if changes := DiffCluster(&v1.ClusterSpec{}, c); len(changes) != 0 {
		t.Errorf("after all were taken back the difference is %v", changes)
	}
}

// Every setting can be set and appears in a diff, also those of a class.
func TestEverySettingCanBeSetAndDiffers(t *testing.T) {
	classed := &v1.ClusterSpec{NodeClasses: []*v1.NodeClass{{Name: "laptops"}}}
	for _, key := range SettingKeys(classed) {
		changed, value := proto.CloneOf(classed), "1"
		if strings.HasSuffix(key, ".enabled") {
			value = "true"
		}
		if err := Set(changed, key, value); err != nil { // validity is checked later
			t.Errorf("%s=%s: %v", key, value, err)
		}
		if changes := DiffCluster(classed, changed); len(changes) != 1 || changes[0].Field != key {
			t.Errorf("%s=%s makes the difference %v", key, value, changes)
		}
	}
}
