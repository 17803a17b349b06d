package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// secretStore is what a cluster remembers of secrets.
type secretStore struct {
	cloudlessv1.UnimplementedSecretServiceServer
	secrets map[string]*cloudlessv1.Secret
	value   []byte // the newest one that was sent
	forced  bool   // whether the last deletion was
}

func (c *cluster) registerSecrets(server *grpc.Server) {
	c.secrets = map[string]*cloudlessv1.Secret{}
	cloudlessv1.RegisterSecretServiceServer(server, c)
}

func (c *cluster) SetSecret(_ context.Context, request *cloudlessv1.SetSecretRequest) (*cloudlessv1.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.secrets[request.GetName()]
	if s == nil {
		s = &cloudlessv1.Secret{Metadata: &cloudlessv1.Metadata{Name: request.GetName(), Namespace: "default"}, Spec: &cloudlessv1.SecretSpec{}, Status: &cloudlessv1.SecretStatus{}}
	}
	s = proto.CloneOf(s)
	if request.GetSpec() != nil {
		s.Spec = request.GetSpec()
	}
	if request.Value != nil {
		c.value = request.GetValue()
		s.Status.Version++
		s.Status.Versions = append([]*cloudlessv1.SecretVersion{{Number: s.Status.Version, Size: int64(len(c.value)), Author: "spiffe://c/user/ann", CreateTime: timestamppb.Now()}}, s.Status.Versions...)
	}
	c.secrets[request.GetName()] = s
	return s, nil
}

func (c *cluster) RotateSecret(ctx context.Context, request *cloudlessv1.RotateSecretRequest) (*cloudlessv1.Secret, error) {
	return c.SetSecret(ctx, &cloudlessv1.SetSecretRequest{Name: request.GetName(), Value: make([]byte, request.GetLength())})
}

func (c *cluster) GetSecret(_ context.Context, request *cloudlessv1.GetSecretRequest) (*cloudlessv1.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.secrets[request.GetName()]; s != nil {
		return s, nil
	}
	return nil, status.Errorf(codes.NotFound, "secret %s does not exist in namespace default", request.GetName())
}

func (c *cluster) ListSecrets(context.Context, *cloudlessv1.ListSecretsRequest) (*cloudlessv1.ListSecretsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cloudlessv1.ListSecretsResponse{}
	for _, s := range c.secrets {
		answer.Items = append(answer.Items, s)
	}
	return answer, nil
}

func (c *cluster) DeleteSecret(_ context.Context, request *cloudlessv1.DeleteSecretRequest) (*cloudlessv1.Secret, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forced = request.GetForce()
	s := c.secrets[request.GetName()]
	delete(c.secrets, request.GetName())
	return s, nil
}

func (c *cluster) ListSecretDeliveries(context.Context, *cloudlessv1.ListSecretDeliveriesRequest) (*cloudlessv1.ListSecretDeliveriesResponse, error) {
	return &cloudlessv1.ListSecretDeliveriesResponse{Items: []*cloudlessv1.SecretDelivery{
		{Version: 2, Replica: "web-1", Node: "box", Time: timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))},
	}}, nil
}

func run(t *testing.T, c *cluster, args ...string) result {
	t.Helper()
	return c.run(t.Context(), "", args...)
}

func TestSecretIsSetFromAFileOrStandardInput(t *testing.T) {
	c := newCluster(t)
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, c, "secret", "set", "db", file, "--for", "web,api", "--ttl", "720h")
	if got.code != 0 || got.stdout != "secret db is at version 1, for api, web\n" || string(c.value) != "hunter2\n" || c.secrets["db"].GetSpec().GetTtl() != "720h" {
		t.Errorf("from a file: %+v, %q, %v", got, c.value, c.secrets["db"])
	}
	for _, line := range []string{"secret set db -", "secret set db", "secret set db --file -"} {
		got := c.run(t.Context(), "from stdin", strings.Fields(line)...)
		if got.code != 0 || string(c.value) != "from stdin" || strings.Contains(got.stdout+got.stderr, "from stdin") {
			t.Errorf("%s: %+v, %q", line, got, c.value)
		}
	}
	if got := run(t, c, "secret", "set", "db", "--keep", "--also-for", "report"); got.code != 0 || got.stdout != "secret db changed: for api, report, web\n" || c.secrets["db"].GetStatus().GetVersion() != 4 || c.secrets["db"].GetSpec().GetTtl() != "720h" {
		t.Errorf("one more workload: %+v, %v", got, c.secrets["db"])
	}
	if got := run(t, c, "secret", "set", "db", "--keep", "--for-all", "--ttl", "0"); got.code != 0 || len(c.secrets["db"].GetSpec().GetAudience()) != 0 || c.secrets["db"].GetSpec().GetTtl() != "" {
		t.Errorf("for all: %+v, %v", got, c.secrets["db"])
	}
	if got := run(t, c, "secret", "rotate", "db", "--length", "20"); got.code != 0 || got.stdout != "secret db is at version 5\n" || len(c.value) != 20 {
		t.Errorf("rotated: %+v, %d bytes", got, len(c.value))
	}
	for line, want := range map[string][]string{
		"secret ls":            {"VERSION", "EXPIRES", "FOR", "USED BY", "DELIVERED", "db", "5", "all workloads of the namespace"},
		"secret get db":        {"Version:    5", "Versions:", "user/ann"},
		"secret deliveries db": {"VERSION", "REPLICA", "web-1", "box"},
		"get secrets":          {"VERSION", "db"},
	} {
		got := run(t, c, strings.Fields(line)...)
		for _, text := range want {
			if got.code != 0 || !strings.Contains(got.stdout, text) {
				t.Errorf("%s does not show %q: %+v", line, text, got)
			}
		}
	}
	if got := run(t, c, "secret", "rm", "db", "--force"); got.code != 0 || !c.forced || len(c.secrets) != 0 {
		t.Errorf("removed: %+v", got)
	}
}

func TestWrongValuesAreRefusedBeforeTheyAreSent(t *testing.T) {
	c := newCluster(t)
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"secret set":                        "NAME is missing",
		"secret set db a b":                 `"b" is too much`,
		"secret set db " + large:            "the value of secret db has more than 1 MiB",
		"secret set db":                     "the value of secret db is empty",
		"secret set db /nowhere/at/all":     "no such file",
		"secret set db x --file y":          "give the file once",
		"secret set db --keep":              "--keep changes nothing alone",
		"secret set db x --keep --for web":  "--keep keeps the value",
		"secret set db x --for a --for-all": "leave out --for and --also-for",
		"run nginx --secret db":             `--secret "db" is not NAME=VARIABLE or NAME:/path`,
		"run nginx --secret =X":             "is not NAME=VARIABLE",
		"run nginx --secret db=1X":          "must be the name of an environment variable",
		"run nginx --secret db:relative":    "must be the absolute path of a file",
	} {
		got := run(t, c, strings.Fields(line)...)
		if got.code == 0 || !strings.Contains(got.stderr, want) || c.value != nil {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
}
