package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/cloudless/cloudless/"

// layer says how high a package stands. A package may import what stands lower,
// and nothing beside or above it, but for the exceptions below.
var layer = map[string]int{
	"api":                              0,
	"api/gen/cloudless/v1":             0,
	"api/gen/cloudless/state/v1":       0,
	"api/gen/cloudless/object/v1":      0,
	"internal/spec":                    0,
	"internal/spec/rules":              0,
	"internal/atomicfile":              0,
	"internal/lockfile":                0,
	"internal/tarcopy":                 0,
	"internal/must":                    0,
	"internal/suggest":                 0,
	"internal/sleep":                   0,
	"internal/retentionclock":          0,
	"internal/crontab":                 0,
	"internal/deadpeer":                0,
	"internal/trafficstat":             0,
	"internal/gcpacer":                 0,
	"internal/listeners":               0,
	"internal/ingress/http1":           0,
	"internal/ingress/proxyproto":      0,
	"internal/ingress/accesslog":       0,
	"internal/ingress/table":           0,
	"internal/ingress/origin":          0,
	"internal/ingress/config":          1,
	"internal/ingress":                 2,
	"internal/ingressd":                3,
	"internal/logfile":                 1,
	"internal/object/chunks":           1,
	"internal/programs":                1,
	"internal/driver":                  1,
	"internal/driver/drivertest":       1,
	"internal/scheduler":               1,
	"internal/scheduler/schedulertest": 1,
	"internal/rollout":                 1,
	"internal/state":                   1,
	"internal/secret":                  1,
	"internal/object/names":            1,
	"internal/ipam":                    1,
	"internal/image":                   1,
	"internal/policy":                  1,
	"internal/discover":                1,
	"internal/doctor":                  1,
	"internal/systemd":                 1,
	"internal/logind":                  1,
	"internal/resolvconf":              1,
	"internal/roles":                   1,
	"internal/assignment":              2,
	"internal/services":                2,
	"internal/routes":                  2,
	"internal/object":                  2,
	"internal/object/objecttest":       2,
	"internal/object/placement":        1,
	"internal/control/placement":       2,
	"internal/control/lease":           2,
	"internal/consensus":               2,
	"internal/identity":                2,
	"internal/mesh":                    2,
	"internal/mesh/portmap":            1,
	"internal/mesh/relay":              1,
	"internal/nodenet":                 2,
	"internal/nodenet/learned":         1,
	"internal/nodenet/nft":             1,
	"internal/gossip":                  2,
	"internal/registry":                2,
	"internal/resolver":                2,
	"internal/telemetry":               2,
	"internal/driver/containerd":       2,
	"internal/netd":                    3,
	"internal/datadir":                 3,
	"internal/datadir/datadirtest":     3,
	"internal/server":                  3,
	"internal/server/auth":             3,
	"internal/server/buckets":          3,
	"internal/server/core":             3,
	"internal/server/core/coretest":    3,
	"internal/server/disks":            3,
	"internal/server/gateway":          3,
	"internal/server/images":           3,
	"internal/server/login":            3,
	"internal/server/membership":       3,
	"internal/server/names":            3,
	"internal/server/network":          3,
	"internal/server/notfound":         3,
	"internal/server/objects":          3,
	"internal/server/oneport":          3,
	"internal/server/redaction":        3,
	"internal/server/s3":               3,
	"internal/server/s3/s3test":        3,
	"internal/server/relay":            3,
	"internal/server/packets":          3,
	"internal/server/peers":            3,
	"internal/server/policies":         3,
	"internal/server/sessions":         3,
	"internal/server/storage":          3,
	"internal/server/streams":          3,
	"internal/server/website":          3,
	"internal/server/trust":            3,
	"internal/acme":                    1,
	"internal/control/authority":       3,
	"internal/control/certificates":    3,
	"internal/control/gossipkey":       3,
	"internal/control/workloadkeys":    3,
	"internal/server/svid":             3,
	"internal/agent/identity":          3,
	"internal/control/images":          3,
	"internal/control/objects":         3,
	"internal/control/nodes":           3,
	"internal/control/autoscale":       3,
	"internal/control/traffic":         3,
	"internal/control/replicas":        3,
	"internal/control/retention":       3,
	"internal/control/services":        3,
	"internal/control/servers":         3,
	"internal/control/cron":            3,
	"internal/control/secrets":         3,
	"internal/agent":                   3,
	"internal/agent/machine":           3,
	"internal/agent/ingress":           3,
	"internal/agent/chunks":            3,
	"internal/agent/origin":            3,
	"internal/object/transfer":         1,
	"internal/agent/pressure":          1,
	"internal/agent/storage":           2,
	"internal/agent/probe":             1,
	"internal/agent/scrape":            1,
	"internal/agent/lease":             1,
	"internal/agent/secrets":           1,
	"client":                           4,
	"internal/cli":                     4,
	"internal/cli/command":             4,
	"internal/cli/phrase":              3,
	"internal/cli/local":               4,
	"internal/cli/wait":                4,
	"internal/cli/usage":               4,
	"internal/cli/login":               4,
	"internal/cli/oidc":                4,
	"internal/cli/network":             4,
	"internal/cli/role":                4,
	"internal/cli/route":               4,
	"internal/cli/bucket":              4,
	"internal/cli/object":              4,
	"internal/cli/storage":             4,
	"internal/cli/secret":              4,
	"internal/cli/stream":              4,
	"internal/cli/terminal":            1,
	"internal/peering":                 4,
	"internal/enroll":                  4,
	"internal/checkup":                 4,
	"internal/maintenance":             4,
	"internal/app":                     5,
	"cmd/cloudless":                    6,
	"docs/generate":                    6,
	"cmd/cloudless-net":                6,
	"cmd/cloudless-ingress":            6,
	"cmd/cloudless-shim":               6,
}

// sideways are the imports within one layer that are meant.
var sideways = map[string][]string{
	"api":                              {"api/gen/cloudless/v1"},
	"internal/spec":                    {"api", "api/gen/cloudless/v1", "internal/crontab", "internal/spec/rules", "internal/suggest"},
	"api/gen/cloudless/v1":             {"api/gen/cloudless/object/v1"},
	"api/gen/cloudless/state/v1":       {"api/gen/cloudless/v1"},
	"internal/nodenet/learned":         {"internal/nodenet/nft"},
	"internal/policy":                  {"internal/image"},
	"internal/secret":                  {"internal/state"},
	"internal/routes":                  {"internal/services"},
	"internal/gcpacer":                 {"internal/sleep"},
	"internal/driver/drivertest":       {"internal/driver", "internal/logfile"},
	"internal/object/objecttest":       {"internal/object"},
	"internal/scheduler/schedulertest": {"internal/scheduler"},
	"internal/cli":                     {"client", "internal/cli/bucket", "internal/cli/command", "internal/cli/local", "internal/cli/login", "internal/cli/network", "internal/cli/object", "internal/cli/role", "internal/cli/route", "internal/cli/secret", "internal/cli/storage", "internal/cli/stream", "internal/cli/usage", "internal/cli/wait"},
	"internal/cli/command":             {"client"},
	"internal/cli/wait":                {"client", "internal/cli/command"},
	"internal/cli/usage":               {"client", "internal/cli/command"},
	"internal/cli/login":               {"client", "internal/cli/command", "internal/cli/oidc"},
	"internal/cli/network":             {"client", "internal/cli/command"},
	"internal/cli/role":                {"client", "internal/cli/command"},
	"internal/cli/route":               {"client", "internal/cli/command", "internal/cli/wait"},
	"internal/cli/bucket":              {"client", "internal/cli/command"},
	"internal/cli/secret":              {"client", "internal/cli/command"},
	"internal/cli/object":              {"client", "internal/cli/command"},
	"internal/cli/storage":             {"client", "internal/cli/command"},
	"internal/cli/stream":              {"client", "internal/cli/command"},
	"internal/cli/local":               {"client", "internal/cli/command"},
	"internal/server":                  {"internal/control/authority", "internal/control/certificates", "internal/server/auth", "internal/server/buckets", "internal/server/core", "internal/server/disks", "internal/server/gateway", "internal/server/images", "internal/server/login", "internal/server/membership", "internal/server/names", "internal/server/network", "internal/server/notfound", "internal/server/objects", "internal/server/oneport", "internal/server/packets", "internal/server/peers", "internal/server/policies", "internal/server/relay", "internal/server/sessions", "internal/server/storage", "internal/server/streams", "internal/server/svid", "internal/server/trust", "internal/server/website"},
	"internal/server/storage":          {"internal/control/objects", "internal/server/core", "internal/server/names", "internal/server/objects", "internal/server/oneport", "internal/server/s3"},
	"internal/server/buckets":          {"internal/server/auth", "internal/server/core", "internal/server/notfound", "internal/server/relay"},
	"internal/server/objects":          {"internal/control/objects", "internal/server/auth", "internal/server/core", "internal/server/relay"},
	"internal/server/svid":             {"internal/control/workloadkeys", "internal/server/core"},
	"internal/server/gateway":          {"internal/server/auth", "internal/server/core", "internal/server/oneport", "internal/server/relay"},
	"internal/server/images":           {"internal/server/auth", "internal/server/core", "internal/server/peers", "internal/server/relay"},
	"internal/server/membership":       {"internal/control/authority", "internal/control/gossipkey", "internal/control/workloadkeys", "internal/server/auth", "internal/server/core", "internal/server/oneport", "internal/server/peers", "internal/server/relay"},
	"internal/server/login":            {"internal/server/auth", "internal/server/core", "internal/server/oneport", "internal/server/relay"},
	"internal/control/authority":       {"internal/control/gossipkey", "internal/control/workloadkeys"},
	"internal/server/trust":            {"internal/control/authority", "internal/server/core"},
	"internal/server/notfound":         {"internal/server/core", "internal/server/images"},
	"internal/server/policies":         {"internal/server/core"},
	"internal/server/relay":            {"internal/server/auth", "internal/server/core", "internal/server/peers"},
	"internal/server/names":            {"internal/server/core"},
	"internal/server/network":          {"internal/server/core", "internal/server/notfound", "internal/server/streams"},
	"internal/server/streams":          {"internal/server/core", "internal/server/notfound"},
	"internal/server/auth":             {"internal/server/core", "internal/server/oneport", "internal/server/redaction"},
	"internal/server/redaction":        {"internal/server/core"},
	"internal/server/sessions":         {"internal/control/authority", "internal/server/auth", "internal/server/core"},
	"internal/datadir/datadirtest":     {"internal/datadir"},
	"internal/agent":                   {"internal/agent/identity", "internal/agent/ingress", "internal/agent/machine", "internal/netd"},
	"internal/agent/ingress":           {"internal/ingressd"},
	"internal/enroll":                  {"client", "internal/peering"},
	"internal/peering":                 {"client"},
	"internal/checkup":                 {"client", "internal/cli/local", "internal/enroll", "internal/peering"},
	"internal/maintenance":             {"client", "internal/cli/local", "internal/enroll"},
}

// The shim runs once per container: it stays as small as it can be.
var shimMayImport = map[string]bool{"internal/logfile": true}

type pkg struct {
	ImportPath string
	Dir        string
	Doc        string
	Imports    []string
	GoFiles    []string
}

// packages lists those of this repository.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Imports,GoFiles", "./...")
	cmd.Dir = "../.."
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for decoder := json.NewDecoder(out); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v", err)
	}
	if len(all) < 20 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

func TestImportsOnlyGoDown(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(from, "test/") || strings.HasPrefix(from, "examples/") {
			continue
		}
		height, known := layer[from]
		if !known {
			t.Errorf("package %s has no layer: give it one in this test and in docs/architecture.md", from)
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours || layer[to] < height {
				continue
			}
			if !contains(sideways[from], to) {
				t.Errorf("%s (layer %d) imports %s (layer %d)", from, height, to, layer[to])
			}
		}
	}
}

func TestShimStaysSmall(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+"cmd/cloudless-shim" {
			continue
		}
		for _, imported := range p.Imports {
			if to, ours := strings.CutPrefix(imported, module); ours && !shimMayImport[to] {
				t.Errorf("cmd/cloudless-shim imports %s", to)
			}
		}
	}
}

// The server's and the agent's code meet only in the API.
func TestServerAndAgentMeetOnlyInTheAPI(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		if !strings.HasPrefix(from, "internal/agent") {
			continue
		}
		for _, imported := range p.Imports {
			to := strings.TrimPrefix(imported, module)
			for _, forbidden := range []string{"internal/server", "internal/control", "internal/state", "internal/consensus"} {
				if strings.HasPrefix(to, forbidden) {
					t.Errorf("%s imports %s", from, to)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 || strings.Contains(p.ImportPath, "/api/gen/") {
			continue
		}
		kind, name := "Package ", path.Base(p.ImportPath)
		if strings.HasPrefix(p.ImportPath, module+"cmd/") {
			kind = "Command "
		}
		if !strings.HasPrefix(p.Doc, kind+name) && !strings.HasPrefix(p.Doc, "Command "+name) {
			t.Errorf("%s: its doc comment must begin with %q, not %q", p.ImportPath, kind+name, p.Doc)
		}
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// TestOnlyFollowersHandleLag: whatever follows the change feed does so by state.Follower, which handles lag in one
// way for all.
func TestOnlyFollowersHandleLag(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		if from == "internal/state" || strings.HasPrefix(from, "test/") {
			continue
		}
		for _, file := range p.GoFiles {
			code, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{".Subscribe()", "ErrLagged"} {
				if strings.Contains(string(code), word) {
					t.Errorf("%s/%s uses %s: use Follow of state.Store", from, file, word)
				}
			}
		}
	}
}
