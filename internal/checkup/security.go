package checkup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/doctor"
)

// clusterPatience limits how long the doctor reads what a cluster has.
const clusterPatience = 30 * time.Second

// Harden checks this machine and the cluster of the current context by what a hardening guide requires.
func Harden(ctx context.Context, o local.DoctorOptions) ([]doctor.Finding, error) {
	v := doctor.Look(ctx, doctor.Options{DataDir: o.DataDir})
	v.Folder = lookFolder(o.DataDir)
	v.Clock.Skew = serverSkew(ctx, o)
	h := doctor.LookHardening(ctx, v, privateFiles(o))
	if v.Folder.Exists {
		h.Server = datadir.At(o.DataDir).HasServer()
		if record, err := datadir.ReadRecord(o.DataDir); err == nil && h.Server {
			h.Listen = record.Listen
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := doctor.Harden(h)
	where, err := contextOf(o)
	if err != nil {
		return append(found, doctor.Finding{
			Check: "cluster", Level: doctor.Unknown, Text: fmt.Sprintf("only the machine was checked: %v", err),
			Mend: "cloudless context add, or run it where you use the cluster",
		}), nil
	}
	ctx, cancel := context.WithTimeout(ctx, clusterPatience)
	defer cancel()
	cl, err := client.Dial(ctx, where)
	if err != nil {
		return append(found, doctor.Finding{
			Check: "cluster", Level: doctor.Unknown, Text: fmt.Sprintf("the cluster of context %s was not checked: %v", where.Name, err),
			Mend: "cloudless up --detach where its server is, or choose another one with: cloudless context use NAME",
		}), nil
	}
	defer func() { _ = cl.Close() }()
	return append(found, askPosture(ctx, cl).judge()...), ctx.Err()
}

// privateFiles are those of this machine that only root may change, and those with keys that nobody else may read.
func privateFiles(o local.DoctorOptions) (all []doctor.File) {
	at := datadir.At(o.DataDir)
	for _, f := range []struct {
		path   string
		secret bool
	}{
		{o.DataDir, false},
		{filepath.Join(o.DataDir, "cloud.json"), false},
		{at.Path("server"), false},
		{at.KeyPath(), true},
		{at.AuthorityPath(), true},
		{at.Path("agent"), false},
		{at.CredentialsPath(), true},
		{filepath.Join(o.DataDir, "containerd"), false},
		{filepath.Join(o.DataDir, "shim"), false},
		{filepath.Dir(datadir.RunDir("x")), false},
	} {
		if file := doctor.LookFile(f.path, f.secret); !file.IsMissing() {
			all = append(all, file)
		}
	}
	// The tokens of the user who asks, who need not be root.
	if file := doctor.LookFile(o.ConfigPath, true); !file.IsMissing() && int(file.UID) == os.Geteuid() {
		file.UID = 0
		all = append(all, file)
	}
	return all
}

// posture is what a cluster says of itself. An item that could not be read has an error.
type posture struct {
	now        time.Time
	settings   *cloudlessv1.ClusterSpec
	authority  *cloudlessv1.AuthorityReport
	namespaces []*cloudlessv1.Namespace
	workloads  []*cloudlessv1.Workload
	tokens     []*cloudlessv1.Token
	bindings   []*cloudlessv1.RoleBinding
	policies   []*cloudlessv1.Policy
	nodes      []*cloudlessv1.Node
	unread     map[string]error // by the name of the item
}

// The items that a cluster is asked for.
const (
	askedSettings   = "configuration"
	askedAuthority  = "authority"
	askedNamespaces = "namespaces"
	askedWorkloads  = "workloads"
	askedTokens     = "tokens"
	askedBindings   = "rolebindings"
	askedPolicies   = "policies"
	askedNodes      = "nodes"
)

// askPosture reads all items. Callers who may not read some of them still get the others.
func askPosture(ctx context.Context, cl *client.Client) *posture {
	p := &posture{now: time.Now(), unread: map[string]error{}}
	configuration, err := cl.Cluster().GetConfiguration(ctx, &cloudlessv1.GetConfigurationRequest{})
	p.settings = configuration.GetSpec().GetCluster()
	p.note(askedSettings, err)
	p.authority, err = client.Service(cl, cloudlessv1.NewAuthorityServiceClient).GetAuthority(ctx, &cloudlessv1.GetAuthorityRequest{})
	p.note(askedAuthority, err)
	p.note(askedNamespaces, list(ctx, cl, askedNamespaces, &p.namespaces))
	p.note(askedWorkloads, list(ctx, cl, askedWorkloads, &p.workloads))
	p.note(askedTokens, list(ctx, cl, askedTokens, &p.tokens))
	p.note(askedBindings, list(ctx, cl, askedBindings, &p.bindings))
	p.note(askedPolicies, list(ctx, cl, askedPolicies, &p.policies))
	p.note(askedNodes, list(ctx, cl, askedNodes, &p.nodes))
	return p
}

func (p *posture) note(item string, err error) {
	if err != nil {
		p.unread[item] = err
	}
}

// list reads all objects of a kind, in all namespaces.
func list[T client.Object](ctx context.Context, cl *client.Client, plural string, into *[]T) error {
	kind, known := api.KindOf(plural)
	if !known {
		return fmt.Errorf("there is no kind %s", plural)
	}
	all, err := cl.Objects(kind).List(ctx, "", "")
	if err != nil {
		return err
	}
	for _, object := range all {
		if one, ok := object.(T); ok {
			*into = append(*into, one)
		}
	}
	return nil
}

// unseen is the finding about an item that could not be read.
func unseen(check string, err error) []doctor.Finding {
	text, mend := fmt.Sprintf("the cluster does not show it: %s", status.Convert(err).Message()), "ask again later"
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		mend = "ask with a token of a role that may read it, such as admin"
	case codes.Unimplemented:
		text, mend = "the servers are of a version that does not show it", "upgrade the servers"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		text = "the cluster did not answer in time"
	}
	return []doctor.Finding{{Check: check, Level: doctor.Unknown, Text: text, Mend: mend}}
}
