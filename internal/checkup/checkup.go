package checkup

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/doctor"
	"github.com/cloudless/cloudless/internal/enroll"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/spec"
)

// furtherChecks are the checks of other packages than doctor.
var furtherChecks = []func(context.Context, local.DoctorOptions) []doctor.Finding{
	clusterAnswers,
	Servers,
	firewallLetsPass,
}

// Examine runs all checks: those of package doctor about the machine, and those that need the files of a cloud.
func Examine(ctx context.Context, o local.DoctorOptions) ([]doctor.Finding, error) {
	if o.Security {
		return Harden(ctx, o)
	}
	folder := lookFolder(o.DataDir)
	cluster := "" // its server may use the API port, too
	if o.APIAddr == "" {
		o.APIAddr = local.DefaultAPIAddr
		if id, err := datadir.ReadRecord(o.DataDir); err == nil {
			o.APIAddr = cmp.Or(id.Listen, o.APIAddr)
		}
		if where, err := contextOf(o); err == nil {
			cluster = where.Cluster
		}
	}
	ports, err := wantedPorts(o)
	if err != nil {
		return nil, err
	}
	if o.ContainerdAddress == "" {
		if id, err := datadir.ReadRecord(o.DataDir); err == nil {
			o.ContainerdAddress = id.ContainerdAddress
		}
	}
	v := doctor.Look(ctx, doctor.Options{DataDir: o.DataDir, Ports: ports, Containerd: o.ContainerdAddress})
	v.Folder = folder
	for i, p := range v.Ports {
		v.Ports[i].Ours = p.PID != 0 && (p.PID == folder.Holder || servesCluster(p.PID, cluster))
	}
	v.Certificates = lookCertificates(o.DataDir)
	if v.Root { // other users cannot see the open files of processes
		v.Leftovers = lookLeftovers(datadir.RunDir(""), o.DataDir)
	}
	v.Clock.Skew = serverSkew(ctx, o)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found := doctor.Examine(v)
	for _, check := range furtherChecks {
		found = append(found, check(ctx, o)...)
	}
	return found, ctx.Err()
}

// firewallLetsPass finds foreign firewall rules that would drop the traffic of replicas.
func firewallLetsPass(ctx context.Context, _ local.DoctorOptions) []doctor.Finding {
	obstacles, err := nodenet.Obstacles(ctx)
	if err != nil {
		return []doctor.Finding{{
			Check: "firewall", Level: doctor.Warn,
			Text: fmt.Sprintf("the rules of the firewall cannot be read: %v", err), Mend: "run cloudless doctor as root",
		}}
	}
	if len(obstacles) == 0 {
		return []doctor.Finding{{Check: "firewall", Level: doctor.OK, Text: "no rule drops what replicas send and receive"}}
	}
	var found []doctor.Finding
	for _, o := range obstacles {
		found = append(found, doctor.Finding{Check: "firewall", Level: doctor.Fail, Text: o.Sentence, Mend: o.Mend})
	}
	return found
}

func wantedPorts(o local.DoctorOptions) ([]doctor.Port, error) {
	_, api, err := net.SplitHostPort(o.APIAddr)
	if err != nil {
		return nil, fmt.Errorf("API address: %w", err)
	}
	var all []doctor.Port
	for i, port := range append([]string{api}, o.Ports...) {
		network, number, err := local.ParsePortUse(port)
		if err != nil {
			return nil, err
		}
		what := "a published port"
		if i == 0 {
			what = "the API"
		}
		all = append(all, doctor.Port{What: what, Network: network, Number: number})
	}
	return all, nil
}

// lookFolder inspects a data folder without locking it.
func lookFolder(path string) doctor.Folder {
	f := doctor.Folder{Path: path}
	if f.Err = datadir.CheckPrivate(path); errors.Is(f.Err, fs.ErrNotExist) {
		f.Err = nil
		return f
	} else if f.Err != nil {
		return f
	}
	id, err := datadir.ReadRecord(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f
	}
	f.Exists, f.Err, f.Cluster = true, err, id.Cluster
	f.Holder = datadir.HolderPID(path)
	if creds, err := identity.LoadCredentials(datadir.At(path).CredentialsPath()); err == nil {
		f.Member = creds.Trust().Cluster()
	}
	f.Orphans = countShims(path)
	return f
}

// countShims counts the running containers of the folder: each has a shim from it.
func countShims(path string) (count int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		if data, err := os.ReadFile(line); err == nil && strings.HasPrefix(string(data), filepath.Join(path, "shim")+"/") {
			count++
		}
	}
	return count
}

func lookCertificates(dataDir string) []doctor.Certificate {
	creds, err := identity.LoadCredentials(datadir.At(dataDir).CredentialsPath())
	if err != nil {
		return nil // another check reports a damaged file
	}
	mend := "cloudless join ADDRESS --token-file FILE"
	if _, err := os.Stat(filepath.Join(dataDir, "server")); err == nil {
		mend = "cloudless up" // the authority is here
	}
	pair, err := creds.Certificate()
	if err != nil {
		return nil
	}
	all := []doctor.Certificate{{What: "the node's certificate", NotBefore: pair.Leaf.NotBefore, NotAfter: pair.Leaf.NotAfter, Life: creds.Lifetime(), Mend: mend}}
	if authority, err := x509.ParseCertificate(pair.Certificate[len(pair.Certificate)-1]); err == nil {
		all = append(all, doctor.Certificate{
			What: "the certificate of the cluster's authority", NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
			Life: authority.NotAfter.Sub(authority.NotBefore), Mend: "make a new cluster and apply the workloads there",
		})
	}
	return all
}

// lookLeftovers finds folders below /run whose clouds have no process any more. It skips that of dataDir, which the next
// up uses.
func lookLeftovers(run, dataDir string) (all []doctor.Leftover) {
	entries, err := os.ReadDir(run)
	if err != nil {
		return nil
	}
	alive := livingClouds()
	if id, err := datadir.ReadRecord(dataDir); err == nil {
		alive = append(alive, id.ID)
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for _, entry := range entries {
		if !datadir.ValidID(entry.Name()) || slices.Contains(alive, entry.Name()) {
			continue
		}
		path := filepath.Join(run, entry.Name())
		mend := "rm -rf " + path
		if strings.Contains(string(mounts), " "+path+"/") {
			mend = fmt.Sprintf("awk '$2 ~ \"^%s/\" {print $2}' /proc/mounts | sort -r | xargs umount && rm -rf %s", path, path)
		}
		all = append(all, doctor.Leftover{Path: path, Mend: mend})
	}
	return all
}

// servesCluster reports whether a process runs on the folder of a cluster.
func servesCluster(pid int, cluster string) bool {
	return cluster != "" && slices.ContainsFunc(datadir.HeldBy(strconv.Itoa(pid)), func(id datadir.Record) bool { return id.Cluster == cluster })
}

// livingClouds are the ids of clouds that have a process: one that holds their folder, or one in their containers.
func livingClouds() (ids []string) {
	for _, id := range datadir.HeldBy("[0-9]*") {
		ids = append(ids, id.ID)
	}
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, group := range groups {
		data, _ := os.ReadFile(group)
		if _, rest, found := strings.Cut(string(data), "/cloudless-"); found && len(rest) >= 8 {
			ids = append(ids, rest[:8])
		}
	}
	return ids
}

// serverPatience limits how long the doctor waits for a cluster that does not answer.
const serverPatience = 3 * time.Second

// askServer gets the health page of the first server that answers. It does not verify the server, because that fails
// with a wrong clock. It sends no secret and uses only the date of the answer.
func askServer(ctx context.Context, where client.Context) (*http.Response, error) {
	asker := &http.Client{
		Timeout:   serverPatience,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	var errs []error
	for _, address := range where.Addresses {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/healthz", nil)
		if err != nil {
			return nil, err
		}
		answer, err := asker.Do(request)
		if err == nil {
			return answer, answer.Body.Close()
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func contextOf(o local.DoctorOptions) (client.Context, error) {
	config, err := client.LoadConfig(o.ConfigPath)
	if err != nil {
		return client.Context{}, err
	}
	return config.Context(o.Context)
}

// serverSkew is how far the server's clock is ahead of this one; nil if no server answers.
func serverSkew(ctx context.Context, o local.DoctorOptions) *time.Duration {
	where, err := contextOf(o)
	if err != nil {
		return nil
	}
	asked := time.Now()
	answer, err := askServer(ctx, where)
	if err != nil {
		return nil
	}
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return nil
	}
	// The date has no fractions: the real time is half a second later on average.
	skew := date.Add(500 * time.Millisecond).Sub(asked.Add(time.Since(asked) / 2)).Round(time.Second)
	return &skew
}

// clusterAnswers checks whether the cluster of the current context answers.
func clusterAnswers(ctx context.Context, o local.DoctorOptions) []doctor.Finding {
	where, err := contextOf(o)
	if err != nil {
		return nil // there is no context yet
	}
	addresses := strings.Join(where.Addresses, ", ")
	if _, err := askServer(ctx, where); err != nil {
		return []doctor.Finding{{
			Check: "cluster", Level: doctor.Warn, Text: fmt.Sprintf("the cluster of context %s does not answer at %s", where.Name, addresses),
			Mend: "cloudless up --detach where its server is, or choose another one with: cloudless context use NAME",
		}}
	}
	return []doctor.Finding{{Check: "cluster", Level: doctor.OK, Text: fmt.Sprintf("the cluster of context %s answers at %s", where.Name, addresses)}}
}

// Servers checks whether the node on this machine reaches a server of its cluster, which may differ from the
// cluster of the current context.
func Servers(ctx context.Context, o local.DoctorOptions) []doctor.Finding {
	f := datadir.At(o.DataDir)
	about, err := f.ReadMembership()
	if err != nil {
		return nil // this machine is no node
	}
	creds, err := identity.LoadCredentials(f.CredentialsPath())
	if err != nil {
		return nil // the check of the certificates reports it
	}
	var why []string
	for _, address := range peering.NewServerList(about, nil).Addresses() {
		soon, cancel := context.WithTimeout(ctx, peering.ReachPatience)
		err := peering.Reach(soon, address, identity.ClientTLS(creds.Trust(), creds.Certificate))
		cancel()
		if err == nil {
			return []doctor.Finding{membershipAt(ctx, f, address, about, creds)}
		}
		why = append(why, fmt.Sprintf("%s (%v)", address, err))
	}
	return []doctor.Finding{{
		Check: "servers", Level: doctor.Warn,
		Text: fmt.Sprintf("node %s keeps its replicas running, but reaches no server of its cluster at %s", about.Node, strings.Join(why, ", ")),
		Mend: "start the servers, or, if they have moved, stop the agent and run: cloudless join ADDRESS --token-file FILE --data-dir " + o.DataDir,
	}}
}

// membershipAt asks a server whether this machine's node is still a member.
func membershipAt(ctx context.Context, f *datadir.Folder, address string, about datadir.Membership, creds *identity.Credentials) doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, enroll.MemberPatience)
	defer cancel()
	again := "cloudless join ADDRESS --token-file FILE --data-dir " + f.Path()
	if f.HasServer() {
		again = "cloudless up --data-dir " + f.Path()
	}
	err := enroll.CheckMember(ctx, address, creds)
	_, removed := api.RemovedNode(err)
	switch {
	case removed:
		return doctor.Finding{
			Check: "servers", Level: doctor.Fail, Mend: again,
			Text: fmt.Sprintf("node %s was removed from its cluster, %s", about.Node, afterRemoval(lookFolder(f.Path()))),
		}
	case status.Code(err) == codes.Unauthenticated:
		return doctor.Finding{
			Check: "servers", Level: doctor.Fail, Mend: again,
			Text: fmt.Sprintf("the cluster does not know node %s, which this machine is: the server at %s says: %s", about.Node, address, status.Convert(err).Message()),
		}
	}
	return doctor.Finding{Check: "servers", Level: doctor.OK, Text: fmt.Sprintf("node %s reaches a server of its cluster at %s", about.Node, address)}
}

// afterRemoval says what happens to the replicas of a removed node. Each remaining one has a shim.
func afterRemoval(left doctor.Folder) string {
	switch {
	case left.Orphans == 0:
		return "so nothing runs on this machine"
	case left.Holder != 0:
		return fmt.Sprintf("and process %d is stopping %s", left.Holder, spec.Count(left.Orphans, "replica"))
	}
	return fmt.Sprintf("but it has left %s running on this machine", spec.Count(left.Orphans, "replica"))
}
