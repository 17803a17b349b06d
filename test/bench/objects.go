package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/test/bench/s3"
)

const (
	s3Keys  = 1_000_000
	s3Nodes = 4
	// s3Objects of s3Object bytes are put before a node is lost.
	s3Objects, s3Object = 128, 8 << 20
	versitygw           = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
)

// objectMeasurements take minutes and a disk, so they are measured only if named.
var objectMeasurements = slices.Concat(
	putAndGet("4k", "objects/s"), putAndGet("1m", "MB/s"), putAndGet("64m", "MB/s"),
	[]measurement{
		{
			name: "s3_put_1m_r3", unit: "MB/s", measure: measureThreeCopies, target: ratioAtLeast(0.25),
			what:  "puts of 1 MiB by 8 clients into a bucket with three copies, on four nodes as processes with one shared disk",
			floor: "the same into a bucket with one copy",
		},
		{
			name: "s3_list_1m", unit: "s", measure: measureListing, target: under(20),
			what:  "listing 1,000,000 keys in pages of 1,000 over TLS; the keys were written into the names directly",
			floor: "none",
		},
		{
			name: "s3_meta", unit: "bytes", measure: measureMetadata, target: noTarget,
			what:  "disk that the names take for an object of one chunk; its memory is in the note",
			floor: "none",
		},
		{
			name: "s3_repair", unit: "MB/s", measure: measureRepair, target: ratioAtLeast(0.5),
			what:  "copying what a lost node had, of four nodes as processes with one shared disk",
			floor: "writing what is to be copied into files of 4 MiB with fsync, on the same disk",
		},
		{
			name: "s3_rss", unit: "MB", measure: measureObjectMemory, target: under(300),
			what:  "VmHWM of the server's process after the puts and gets of this run, node included",
			floor: "none",
		},
	})

func putAndGet(size, unit string) []measurement {
	both := make([]measurement, 2)
	for i, verb := range []string{"put", "get"} {
		both[i] = measurement{
			name: "s3_" + verb + "_" + size, unit: unit, target: ratioAtLeast(0.6),
			what:  verb + "s of objects of " + size + " by 8 clients with SigV4 and TLS on one machine, one copy, median of 3 turns",
			floor: "a plain server that keeps each object in a file, fsynced and renamed, with the same TLS, MD5 and SigV4",
			measure: func(ctx context.Context, l *lab) (result, error) {
				stand, err := l.objectStand(ctx)
				if err != nil {
					return result{}, err
				}
				f, err := s3.Compare(ctx, stand.servers(), s3.Sizes[size], verb == "put")
				return result{value: f.Value, floor: f.Floor, notes: f.Notes}, err
			},
		}
	}
	return both
}

// objectStand is a cloud of one machine beside the servers that it is compared with.
type objectStand struct {
	cloud  *cloud
	ours   *s3.Endpoint
	others *s3.Others
}

// objectStand starts it once. The lab closes it.
func (l *lab) objectStand(ctx context.Context) (_ *objectStand, err error) {
	if l.objects != nil {
		return l.objects, nil
	}
	s := &objectStand{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	plain, err := l.build(ctx, "plain", "./test/bench/s3/plain")
	if err != nil {
		return nil, err
	}
	gateway, err := l.install(ctx, versitygw)
	if err != nil {
		return nil, err
	}
	if s.others, err = s3.StartOthers(ctx, l.dir, plain, gateway); err != nil {
		return nil, err
	}
	if s.cloud, err = l.newCloud(ctx, "objects"); err != nil {
		return nil, err
	}
	api, err := s.cloud.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.ours, err = newEndpoint(ctx, api, "https://"+s.cloud.address)
	if err = errors.Join(err, api.Close()); err != nil {
		return nil, err
	}
	l.objects = s
	return s, nil
}

func (s *objectStand) servers() []*s3.Endpoint {
	return []*s3.Endpoint{s.ours, s.others.Plain, s.others.Posix}
}

func (s *objectStand) close() {
	if s.ours != nil {
		s.ours.Close()
	}
	if s.others != nil {
		s.others.Close()
	}
	if s.cloud != nil {
		s.cloud.close()
	}
}

// install builds a program of another module.
func (l *lab) install(ctx context.Context, program string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "install", program)
	cmd.Env = append(os.Environ(), "GOBIN="+l.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	name, _, _ := strings.Cut(filepath.Base(program), "@")
	return filepath.Join(l.dir, name), nil
}

// newEndpoint makes an access key.
func newEndpoint(ctx context.Context, api *client.Client, url string) (*s3.Endpoint, error) {
	made, err := client.Service(api, v1.NewBucketServiceClient).CreateAccessKey(ctx, &v1.CreateAccessKeyRequest{
		Namespace: "default", Spec: &v1.AccessKeySpec{Role: "operator"},
	})
	if err != nil {
		return nil, err
	}
	return &s3.Endpoint{Name: "cloudless", URL: url, Key: made.GetAccessKey().GetMetadata().GetName(), Secret: made.GetSecret()}, nil
}

func measureListing(ctx context.Context, l *lab) (result, error) {
	k, err := l.keys(ctx)
	return result{value: k.List.Seconds(), notes: []string{
		fmt.Sprintf("%d pages; writing the keys took %.3g s; server and client are one process", k.Pages, k.Write.Seconds()),
	}}, err
}

func measureMetadata(ctx context.Context, l *lab) (result, error) {
	k, err := l.keys(ctx)
	return result{value: k.Disk, notes: []string{
		fmt.Sprintf("memory: %.3g bytes of heap for each of %d objects, after listing them; the cache of the names is bounded and not in the heap", k.Memory, s3Keys),
	}}, err
}

// keys measures the names once, for both of their figures.
func (l *lab) keys(ctx context.Context) (s3.Keys, error) {
	if l.listed == nil {
		k, err := s3.MeasureKeys(ctx, l.dir, s3Keys)
		if err != nil {
			return k, err
		}
		l.listed = &k
	}
	return *l.listed, nil
}

// measureObjectMemory is the last of the figures, after the load.
func measureObjectMemory(ctx context.Context, l *lab) (result, error) {
	stand, err := l.objectStand(ctx)
	if err != nil {
		return result{}, err
	}
	if _, err := s3.Compare(ctx, stand.servers()[:1], s3.Sizes["1m"], true); err != nil {
		return result{}, err
	}
	pid, err := stand.cloud.pid()
	if err != nil {
		return result{}, err
	}
	peak, err := procStatus(pid, "VmHWM")
	if err != nil {
		return result{}, err
	}
	now, err := procStatus(pid, "VmRSS")
	return result{value: float64(peak) / 1000, notes: []string{fmt.Sprintf("%.4g MB right after the load", float64(now)/1000)}}, err
}

// quartet is four machines with a node each; the first one is the server.
type quartet struct {
	*machines
	config string
	data   [s3Nodes]string
	ours   *s3.Endpoint
	api    *client.Client
}

// newQuartet starts them. Its close leaves nothing behind.
func (l *lab) newQuartet(ctx context.Context, name string) (_ *quartet, err error) {
	m, err := l.newMachines(s3Nodes)
	if err != nil {
		return nil, err
	}
	q := &quartet{machines: m, config: filepath.Join(l.dir, name+".yaml")}
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	for i := range q.data {
		q.data[i] = filepath.Join(l.dir, fmt.Sprintf("%s-%d", name, i+1))
	}
	if _, err := q.cloudless(ctx, 0, "up", "--detach", "--data-dir", q.data[0], "--api-addr", q.server(), "--name", "n1"); err != nil {
		return nil, err
	}
	token := filepath.Join(l.dir, name+".token")
	secret, err := q.cloudless(ctx, 0, "token", "create", "--role", "node")
	if err == nil {
		err = os.WriteFile(token, []byte(secret), 0o600)
	}
	for i := 1; i < s3Nodes && err == nil; i++ {
		_, err = q.cloudless(ctx, i, "join", q.server(), "--detach", "--token-file", token, "--data-dir", q.data[i], "--name", fmt.Sprintf("n%d", i+1))
	}
	if err != nil {
		return nil, err
	}
	return q, q.connect(ctx)
}

func (q *quartet) server() string { return q.address(0) + ":7700" }

// connect makes an access key, and waits until all nodes can store something.
func (q *quartet) connect(ctx context.Context) error {
	if err := q.attach(); err != nil {
		return err
	}
	config, err := client.LoadConfig(q.config)
	if err != nil {
		return err
	}
	where, err := config.Context("")
	if err != nil {
		return err
	}
	if q.api, err = client.Dial(ctx, where); err != nil {
		return err
	}
	if q.ours, err = newEndpoint(ctx, q.api, "https://"+q.server()); err != nil {
		return err
	}
	return q.until(ctx, func(s *v1.StorageStatus) bool {
		return s3Nodes == count(s.GetNodes(), func(n *v1.NodeStorage) bool { return n.GetState() == "online" && n.GetFree() > 0 })
	})
}

func count[T any](all []T, is func(T) bool) (n int) {
	for _, one := range all {
		if is(one) {
			n++
		}
	}
	return n
}

// attach connects this process to the switch of the machines. The link goes with the switch.
func (m *machines) attach() error {
	link := fmt.Sprintf("clb%d", os.Getpid())
	for _, step := range [][]string{
		{"-n", m.hub, "link", "add", "bench", "master", "switch", "type", "veth", "peer", "name", link, "netns", fmt.Sprint(os.Getpid())},
		{"-n", m.hub, "link", "set", "bench", "up"},
		{"address", "add", "198.18.0.254/24", "dev", link},
		{"link", "set", link, "up"},
	} {
		if err := ip(step...); err != nil {
			return err
		}
	}
	return nil
}

// cloudless runs a command on a machine and returns its output.
func (q *quartet) cloudless(ctx context.Context, i int, args ...string) (string, error) {
	cmd := q.in(ctx, i, append([]string{q.lab.cloudless}, args...)...)
	cmd.Env = append(os.Environ(), client.ConfigEnv+"="+q.config)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("cloudless %s: %w\n%s", args[0], err, exit.Stderr)
	}
	return string(out), err
}

func (q *quartet) close() {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	if q.ours != nil {
		q.ours.Close()
	}
	for i := range q.data {
		if _, err := q.cloudless(ctx, i, "down", "--purge", "--data-dir", q.data[i]); err != nil {
			q.lab.say("%v", err)
		}
	}
	q.machines.close()
}

// until waits until the store is as wanted.
func (q *quartet) until(ctx context.Context, met func(*v1.StorageStatus) bool) error {
	for {
		status, err := client.Service(q.api, v1.NewStorageServiceClient).GetStorageStatus(ctx, &v1.GetStorageStatusRequest{})
		if err == nil && met(status) {
			return nil
		}
		if stopped := sleep.For(ctx, 100*time.Millisecond); stopped != nil {
			return errors.Join(fmt.Errorf("the object store has not become as expected: %v: %w", status, stopped), err)
		}
	}
}

func measureThreeCopies(ctx context.Context, l *lab) (_ result, err error) {
	q, err := l.newQuartet(ctx, "s3-copies")
	if err != nil {
		return result{}, err
	}
	defer q.close()
	for bucket, copies := range map[string]int32{"one": 1, "three": 3} {
		if err := q.bucket(ctx, bucket, copies); err != nil {
			return result{}, err
		}
	}
	f, err := s3.CompareBuckets(ctx, q.ours, "three", "one", s3.Sizes["1m"])
	return result{value: f.Value, floor: f.Floor, notes: f.Notes}, err
}

func (q *quartet) bucket(ctx context.Context, name string, copies int32) error {
	_, err := client.Service(q.api, v1.NewBucketServiceClient).CreateBucket(ctx, &v1.CreateBucketRequest{Bucket: &v1.Bucket{
		Metadata: &v1.Metadata{Namespace: "default", Name: name}, Spec: &v1.BucketSpec{Replicas: copies},
	}})
	return err
}

// measureRepair puts objects with three copies, removes a node, and measures until all have three copies again.
func measureRepair(ctx context.Context, l *lab) (_ result, err error) {
	q, err := l.newQuartet(ctx, "s3-repair")
	if err != nil {
		return result{}, err
	}
	defer q.close()
	if err := q.bucket(ctx, "repair", 3); err != nil {
		return result{}, err
	}
	if err := q.ours.Fill(ctx, "repair", "object-%06d", s3Objects, s3Object); err != nil {
		return result{}, err
	}
	healthy := func(s *v1.StorageStatus) bool { return s.GetUnderReplicated() == 0 && s.GetChunks() > 0 }
	if err := q.until(ctx, healthy); err != nil {
		return result{}, err
	}
	disk, err := writeFiles(l.dir, s3Objects*s3Object*3/s3Nodes)
	if err != nil {
		return result{}, err
	}
	if _, err := q.cloudless(ctx, s3Nodes-1, "down", "--purge", "--data-dir", q.data[s3Nodes-1]); err != nil {
		return result{}, err
	}
	if err := q.until(ctx, func(s *v1.StorageStatus) bool { return s.GetUnderReplicated() > 0 }); err != nil {
		return result{}, err
	}
	repair, err := client.Service(q.api, v1.NewStorageServiceClient).RepairStorage(ctx, &v1.RepairStorageRequest{})
	if err != nil {
		return result{}, err
	}
	var bytes int64
	began := time.Now()
	for {
		progress, err := repair.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return result{}, err
		}
		bytes = max(bytes, progress.GetDone())
	}
	took := time.Since(began)
	return result{value: float64(bytes) / took.Seconds() / 1e6, floor: disk / 1e6, notes: []string{fmt.Sprintf(
		"%.4g MB in %s by RepairStorage, at the usual rate; the floor is the disk alone: all machines share it and the processors", float64(bytes)/1e6, took.Round(time.Millisecond))}}, err
}

// writeFiles writes files of a chunk each with fsync, and returns how many bytes a second.
func writeFiles(dir string, size int) (float64, error) {
	folder := filepath.Join(dir, "floor")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	const chunk = 4 << 20
	data := make([]byte, chunk)
	_, _ = rand.Read(data) // never fails
	began := time.Now()
	for i := range size / chunk {
		file, err := os.Create(filepath.Join(folder, fmt.Sprint(i)))
		if err != nil {
			return 0, err
		}
		_, err = file.Write(data)
		if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
			return 0, err
		}
	}
	return float64(size) / time.Since(began).Seconds(), nil
}
