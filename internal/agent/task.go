package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/identity"
	"github.com/cloudless/cloudless/internal/agent/secrets"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// The labels by which the agent recognizes its tasks.
const (
	labelReplica = "replica"
	labelAttempt = "attempt"
)

// defaultDriver runs workloads that name no driver.
const defaultDriver = "container"

// uidPattern is what may become a file name and a part of a task's id.
var uidPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// taskID names one attempt of a replica on this machine.
func taskID(uid string, attempt int) string { return uid + "-" + strconv.Itoa(attempt) }

// driverName is the driver that the assignment asks for.
func driverName(a *v1.Assignment) string {
	if name := a.GetRevision().GetSpec().GetWorkload().GetDriver(); name != "" {
		return name
	}
	return defaultDriver
}

// describe turns an assignment into the task of one attempt.
func describe(a *v1.Assignment, attempt int, logDir string, limits driver.LogLimits) (driver.Task, error) {
	uid := a.GetReplica().GetMetadata().GetUid()
	revision := a.GetRevision().GetSpec()
	w := revision.GetWorkload()
	resources, err := resourcesOf(w.GetResources())
	if err != nil {
		return driver.Task{}, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	task := driver.Task{
		ID:           taskID(uid, attempt),
		Labels:       map[string]string{labelReplica: uid, labelAttempt: strconv.Itoa(attempt)},
		Image:        revision.GetImage(),
		Command:      w.GetCommand(),
		Args:         w.GetArgs(),
		Env:          w.GetEnv(),
		WorkingDir:   w.GetWorkingDir(),
		User:         w.GetUser(),
		Hostname:     hostname(a.GetReplica().GetMetadata().GetName()),
		ReadOnlyRoot: w.GetReadOnlyRoot(),
		Security:     securityOf(revision),
		Sandbox:      w.GetSandbox(),
		Devices:      slices.Clone(w.GetSecurity().GetDevices()),
		Network:      driver.Network(w.GetNetwork()),
		Resources:    resources,
		LogDir:       logDir,
		Logs:         limits,
	}
	if w.GetSingleton() {
		task.Env = maps.Clone(task.Env)
		if task.Env == nil {
			task.Env = map[string]string{}
		}
		task.Env[spec.EpochVariable] = strconv.FormatUint(a.GetReplica().GetSpec().GetEpoch(), 10)
	}
	if task.Image == "" {
		task.Image = w.GetImage()
	}
	if task.Network == "" {
		task.Network = driver.NetworkNode
	}
	return task, nil
}

// securityOf is what the replicas of a revision may do on the machine.
func securityOf(revision *v1.RevisionSpec) driver.Security {
	w := revision.GetWorkload()
	asked := w.GetSecurity()
	s := driver.Security{
		AddCapabilities: asked.GetCapabilities().GetAdd(), DropCapabilities: asked.GetCapabilities().GetDrop(),
		Seccomp: asked.GetSeccomp(), AppArmor: asked.GetApparmor(),
	}
	if name := spec.SeccompName(w); name != "" {
		s.Seccomp = cmp.Or(revision.GetSeccompProfile(), name) // the driver refuses a name
	}
	switch spec.ProfileOf(w) {
	case spec.ProfileRestricted:
		s.Profile = driver.Restricted
	case spec.ProfilePrivileged:
		s.Profile = driver.Privileged
	}
	if asked != nil {
		s.NewPrivileges, s.UserNamespace = asked.AllowPrivilegeEscalation, asked.UserNamespace
	}
	return s
}

// wantedSecrets are the secrets that the replica uses.
func (r *replica) wantedSecrets() secrets.Wanted {
	return secrets.Wanted{
		Replica: r.uid, Namespace: r.rec.Assignment.GetReplica().GetMetadata().GetNamespace(),
		Refs: r.rec.Assignment.GetRevision().GetSpec().GetWorkload().GetSecrets(),
	}
}

// awaitSecrets waits until the node has the secrets of the replica, and reports whether it has.
func (r *replica) awaitSecrets(ctx context.Context) bool {
	wanted := r.wantedSecrets()
	if len(wanted.Refs) == 0 {
		return true
	}
	news := r.secrets.News(r.uid)
	for {
		err := r.secrets.Check(wanted)
		if err == nil {
			r.clearProblem()
			return true
		}
		before := r.problem
		if r.reportProblem(err); r.problem != before { // a node without a server says it on the machine, too
			r.log.Warn("replica waits for secrets", "reason", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-news:
		}
	}
}

// errNoSecrets means that the node cannot give a replica its secrets at the moment.
var errNoSecrets = errors.New("the secrets are not ready")

// addSecrets gives the task its secrets.
func (r *replica) addSecrets(task *driver.Task) error {
	wanted := r.wantedSecrets()
	placed, err := r.secrets.Prepare(wanted)
	if errors.Is(err, secrets.ErrInvalid) {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoSecrets, err)
	}
	if len(wanted.Refs) == 0 {
		return nil
	}
	task.SecretEnv, task.Folders = placed.Env, placed.Folders
	task.Owner = func(user driver.User) error { return r.secrets.Own(r.uid, wanted.Refs, secrets.User(user)) }
	return nil
}

// watchSecrets has a token at once and whenever a secret of the replica may have changed. It is nil if it uses none.
func (r *replica) watchSecrets() <-chan struct{} {
	if len(r.wantedSecrets().Refs) == 0 {
		return nil
	}
	return r.secrets.Wake(r.uid)
}

// refreshSecrets brings the files of the running task up to date and tells its program, by a signal if it wants one. It
// returns why the task must be restarted, if so.
func (r *replica) refreshSecrets(ctx context.Context) (restart string, err error) {
	change, err := r.secrets.Refresh(r.wantedSecrets())
	if err != nil {
		return "", err
	}
	for _, name := range change.Lost {
		r.event("warning", "SecretLost", fmt.Sprintf("Its file of secret %s was removed, because the secret was deleted, has expired, or is no longer for this workload. The program goes on.", name))
	}
	if len(change.Restart) > 0 {
		reason := fmt.Sprintf("It is restarted because secret %s has a new version.", strings.Join(change.Restart, ", "))
		if r.rec.policy().when != "never" {
			r.event("info", "SecretChanged", reason)
			return reason, nil
		}
		r.event("warning", "SecretChanged", fmt.Sprintf("Secret %s has a new version, but its restart policy is never: the program goes on.", strings.Join(change.Restart, ", ")))
	}
	for _, signal := range change.Signals {
		err := r.signal(ctx, signal)
		if errors.Is(err, driver.ErrNotRunning) || errors.Is(err, driver.ErrNotFound) {
			break // how it has ended is seen by another way
		}
		if err != nil {
			return "", fmt.Errorf("tell the program that a secret has changed: %w", err)
		}
		r.event("info", "SecretChanged", fmt.Sprintf("Its program got %s because a secret has a new version.", signal))
	}
	return "", r.secrets.Told(r.uid)
}

// signal sends a signal to the first process of the task.
func (r *replica) signal(ctx context.Context, name string) error {
	signaler, able := r.driver.(driver.Signaler)
	if !able {
		return fmt.Errorf("driver %s cannot send signals", r.driver.Name())
	}
	return r.drive(ctx, "signal", func(ctx context.Context) error { return signaler.Signal(ctx, taskID(r.uid, r.rec.Attempt), name) })
}

// identify lets the program of a replica get its identity, if the replica asks for one.
func (r *replica) identify(task *driver.Task) error {
	a := r.rec.Assignment
	asked := a.GetRevision().GetSpec().GetWorkload().GetIdentity()
	if asked == nil {
		return nil
	}
	dir, err := r.identity.Open(identity.Subject{
		UID: r.uid, Namespace: a.GetReplica().GetMetadata().GetNamespace(), Workload: a.GetReplica().GetSpec().GetWorkload(),
		TTL: spec.IdentityTTL(asked),
	})
	if err != nil || task == nil {
		return err
	}
	task.Files, task.Env = maps.Clone(task.Files), maps.Clone(task.Env)
	if task.Files == nil {
		task.Files = map[string]string{}
	}
	if task.Env == nil {
		task.Env = map[string]string{}
	}
	task.Files[identity.MountPath], task.Env[identity.EndpointVariable] = dir, identity.Endpoint
	return nil
}

// identifyAgain opens the socket of a replica whose program has outlived an earlier agent.
func (r *replica) identifyAgain() {
	if r.rec.Status.GetPhase() != spec.PhaseRunning {
		return
	}
	if err := r.identify(nil); err != nil {
		r.log.Warn("the replica gets no new certificates and tokens for its identity", "error", err)
	}
}

// maxHostname is the longest DNS label; the kernel accepts one more character.
const maxHostname = 63

// hostname is the replica's name. If it is too long, the workload's part is cut, because
// the rest distinguishes the replicas.
func hostname(name string) string {
	excess := len(name) - maxHostname
	if excess <= 0 {
		return name
	}
	at := strings.LastIndexByte(name, '-')
	if at <= excess { // there is no part to cut
		return strings.TrimRight(name[:maxHostname], "-")
	}
	return strings.TrimRight(name[:at-excess], "-") + name[at:]
}

func resourcesOf(r *v1.Resources) (resources driver.Resources, err error) {
	for _, f := range []struct {
		name, text string
		parse      func(string) (int64, error)
		value      *int64
	}{
		{"requests.cpu", r.GetRequests().GetCpu(), spec.ParseCPU, &resources.CPURequest},
		{"limits.cpu", r.GetLimits().GetCpu(), spec.ParseCPU, &resources.CPULimit},
		{"limits.memory", r.GetLimits().GetMemory(), spec.ParseBytes, &resources.MemoryLimit},
	} {
		if f.text == "" {
			continue
		}
		if *f.value, err = f.parse(f.text); err != nil {
			return driver.Resources{}, fmt.Errorf("resources.%s: %w", f.name, err)
		}
	}
	return resources, nil
}

// memoryRequest is the replica's requested memory in bytes, 0 if it requests none. A limit without a request is also
// requested.
func memoryRequest(a *v1.Assignment) int64 {
	r := a.GetRevision().GetSpec().GetWorkload().GetResources()
	bytes, err := spec.ParseBytes(cmp.Or(r.GetRequests().GetMemory(), r.GetLimits().GetMemory()))
	if err != nil {
		return 0
	}
	return bytes
}

// The default way to stop a replica.
const (
	defaultSignal = "SIGTERM"
	defaultGrace  = 10 * time.Second
)

// stopOf says how to stop the replica. An unreadable spec must not keep a replica from
// being stopped, so it falls back to the default.
func stopOf(a *v1.Assignment) (signal string, grace time.Duration) {
	stop := a.GetRevision().GetSpec().GetWorkload().GetStop()
	signal, grace = stop.GetSignal(), defaultGrace
	if unix.SignalNum(signal) == 0 {
		signal = defaultSignal
	}
	for _, text := range []string{stop.GetGrace(), a.GetReplica().GetSpec().GetStopGrace()} {
		if d, err := spec.ParseDuration(text); err == nil && text != "" {
			grace = d
		}
	}
	return signal, grace
}

// longestGrace is longer than any grace period.
const longestGrace = time.Duration(math.MaxInt64)

// stop stops a task as its replica asks for.
func stop(ctx context.Context, d driver.Driver, id string, a *v1.Assignment) error {
	return stopWithin(ctx, d, id, a, longestGrace)
}

// stopWithin stops a task as its replica asks for, with a grace period of at most longest. A signal that the driver does
// not know falls back to the default.
func stopWithin(ctx context.Context, d driver.Driver, id string, a *v1.Assignment, longest time.Duration) error {
	signal, grace := stopOf(a)
	grace = min(grace, longest)
	err := d.Stop(ctx, id, signal, grace)
	if errors.Is(err, driver.ErrInvalid) && signal != defaultSignal {
		err = d.Stop(ctx, id, defaultSignal, grace)
	}
	return err
}
