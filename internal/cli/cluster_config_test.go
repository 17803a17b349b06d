package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// settled is a fake configuration service that keeps every version and simulates changes by others.
type settled struct {
	all []*cloudlessv1.Configuration
	// others is called before a configuration is set.
	others func()
}

func (v *settled) put(author string, settings *cloudlessv1.ClusterSpec) *cloudlessv1.Configuration {
	made := &cloudlessv1.Configuration{
		ApiVersion: spec.APIVersion, Kind: spec.KindConfiguration, Metadata: &cloudlessv1.Metadata{},
		Spec: &cloudlessv1.ConfigurationSpec{Number: uint64(len(v.all) + 1), Author: author, Cluster: settings},
	}
	if len(v.all) > 0 {
		for _, c := range spec.DiffCluster(v.all[len(v.all)-1].GetSpec().GetCluster(), settings) {
			made.Spec.Changes = append(made.Spec.Changes, &cloudlessv1.FieldChange{Path: c.Field, Before: c.Old, After: c.New})
		}
	}
	v.all = append(v.all, made)
	return made
}

func (v *settled) GetConfiguration(_ context.Context, request *cloudlessv1.GetConfigurationRequest) (*cloudlessv1.Configuration, error) {
	if n := request.GetNumber(); n != 0 {
		return v.all[n-1], nil
	}
	return v.all[len(v.all)-1], nil
}

func (v *settled) ListConfigurations(context.Context, *cloudlessv1.ListConfigurationsRequest) (*cloudlessv1.ListConfigurationsResponse, error) {
	return &cloudlessv1.ListConfigurationsResponse{Items: v.all}, nil
}

func (v *settled) SetConfiguration(_ context.Context, request *cloudlessv1.SetConfigurationRequest) (*cloudlessv1.Configuration, error) {
	if v.others != nil {
		v.others()
		v.others = nil
	}
	if request.GetConfiguration().GetSpec().GetNumber() != uint64(len(v.all)) {
		return nil, status.Error(codes.Aborted, "there is a newer one")
	}
	made := v.put("spiffe://test/user/me", request.GetConfiguration().GetSpec().GetCluster())
	if request.GetDryRun() {
		v.all = v.all[:len(v.all)-1]
	}
	return made, nil
}

// Settings are applied on top of a concurrent change. A file that was made from an older version is refused.
func TestConcurrentConfigChanges(t *testing.T) {
	c := newCluster(t)
	c.versions = &settled{}
	c.versions.put("spiffe://test/server/one", &cloudlessv1.ClusterSpec{})
	other := func() {
		newest := proto.CloneOf(c.versions.all[len(c.versions.all)-1].GetSpec().GetCluster())
		newest.Limits = &cloudlessv1.ClusterLimits{Nodes: new(newest.GetLimits().GetNodes() + 5)}
		c.versions.put("spiffe://test/user/other", newest)
	}
	c.versions.others = other
	c.run(t.Context(), "", "cluster", "config", "set", "desiredVoters=5").
		expect(t, 0, "desiredVoters: 3 (default) → 5\nconfiguration 3 is in force\n", "")
	if got := c.versions.all[2].GetSpec().GetCluster(); got.GetDesiredVoters() != 5 || got.GetLimits().GetNodes() != 5 {
		t.Errorf("in force is %v", got)
	}
	shown := c.run(t.Context(), "", "cluster", "config", "get", "-o", "yaml")
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(shown.stdout, "desiredVoters: 5", "desiredVoters: 7", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.versions.others = other
	c.run(t.Context(), "", "cluster", "config", "set", "-f", file).expect(t, 1, "", "cloudless: there is a newer one\n")
	if len(c.versions.all) != 4 {
		t.Errorf("there are %d versions", len(c.versions.all))
	}
	history := c.run(t.Context(), "", "cluster", "config", "history").stdout
	if !strings.Contains(history, "user/other") || !strings.Contains(history, "founded") {
		t.Errorf("the history is\n%s", history)
	}
}

func TestEditCluster(t *testing.T) {
	c := newCluster(t)
	c.versions = &settled{}
	c.versions.put("spiffe://test/server/one", &cloudlessv1.ClusterSpec{DesiredVoters: proto.Int32(3)})
	editor(t, `grep -q author "$1" && exit 3; sed -i 's/desiredVoters: 3/desiredVoters: 5/' "$1"`)
	c.run(t.Context(), "", "edit", "cluster").expect(t, 0, "desiredVoters: 3 → 5\nconfiguration 2 is in force\n", "")

	c.versions.others = func() {
		c.versions.put("spiffe://test/user/other", &cloudlessv1.ClusterSpec{DesiredVoters: proto.Int32(7)})
	}
	editor(t, `sed -i 's/desiredVoters: 5/desiredVoters: 1/' "$1"`)
	got := c.run(t.Context(), "", "edit", "cluster")
	if got.code != 1 || !strings.Contains(got.stderr, "there is a newer one") || !strings.Contains(got.stderr, "cloudless cluster config set -f "+os.Getenv("TMPDIR")) {
		t.Errorf("after somebody else's change: %+v", got)
	}
}

func TestConfigUsageErrors(t *testing.T) {
	c := newCluster(t)
	c.versions = &settled{}
	c.versions.put("", &cloudlessv1.ClusterSpec{})
	for line, want := range map[string]string{
		"set":                              "there is nothing to set: give KEY=VALUE, such as liveness.silence=5s",
		"set -f x a=b":                     "give either -f or KEY=VALUE",
		"set liveness":                     `"liveness" is not of the form KEY=VALUE`,
		"set desiredVoter=5":               `"desiredVoter" is not a setting; did you mean desiredVoters?`,
		"set --unset gravity":              `"gravity" is not a setting; see them all with: cloudless cluster config get`,
		"set desiredVoters=many":           "desiredVoters: must be a whole number",
		"diff 1 2 3":                       "two versions can be compared, not 3",
		"diff one":                         `"one" is not the number of a version: see them with: cloudless cluster config history`,
		"rollback":                         "VERSION",
		"rollback 0":                       `"0" is not the number of a version`,
		"set nodeClasses.laptops.label=x":  "did you mean nodeClasses.laptops.labels?",
		"set -f /nowhere/in/this/file.yml": "read the file: open /nowhere/in/this/file.yml",
	} {
		got := c.run(t.Context(), "", append([]string{"cluster", "config"}, strings.Fields(line)...)...)
		if got.code == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: %d %q, want %q", line, got.code, got.stderr, want)
		}
	}
	if len(c.versions.all) != 1 {
		t.Errorf("something was set: %v", c.versions.all)
	}
}

func TestSettingsAreCompleted(t *testing.T) {
	c := newCluster(t)
	c.versions = &settled{}
	c.versions.put("", &cloudlessv1.ClusterSpec{NodeClasses: []*cloudlessv1.NodeClass{{Name: "laptops", Labels: "kind=laptop"}}})
	for typed, want := range map[string]string{
		"set liveness.s":           "liveness.silence=\n",
		"set nodeClasses.laptops.": "nodeClasses.laptops.labels=\n",
		"rollback ":                "1\n",
		"get --version ":           "1\n",
	} {
		words := strings.Split("cluster config "+typed, " ")
		got := c.run(t.Context(), "", append([]string{"__complete"}, words...)...)
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %q, want %q", typed, got.stdout, want)
		}
	}
}

func (c *cluster) GetConfiguration(ctx context.Context, request *cloudlessv1.GetConfigurationRequest) (*cloudlessv1.Configuration, error) {
	return c.versions.GetConfiguration(ctx, request)
}

func (c *cluster) ListConfigurations(ctx context.Context, request *cloudlessv1.ListConfigurationsRequest) (*cloudlessv1.ListConfigurationsResponse, error) {
	return c.versions.ListConfigurations(ctx, request)
}

func (c *cluster) SetConfiguration(ctx context.Context, request *cloudlessv1.SetConfigurationRequest) (*cloudlessv1.Configuration, error) {
	return c.versions.SetConfiguration(ctx, request)
}
