package server

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func (u *user) secrets() v1.SecretServiceClient { return v1.NewSecretServiceClient(u.conn) }

// keepSecret gives a secret a value.
func (c *cluster) keepSecret(u *user, name, value string, audience ...string) *v1.Secret {
	c.t.Helper()
	request := &v1.SetSecretRequest{Name: name, Value: []byte(value)}
	if len(audience) > 0 {
		request.Spec = &v1.SecretSpec{Audience: audience}
	}
	made, err := u.secrets().SetSecret(c.ctx, request)
	must(c.t, err)
	return made
}

// using makes a workload use secrets.
func using(refs ...*v1.SecretRef) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Spec.Secrets = refs }
}

// receiveSecrets receives messages until one has secrets, and returns whether assignments came before.
func receiveSecrets(t *testing.T, stream sessionClient) (down *v1.SecretsDown, assignedBefore bool) {
	t.Helper()
	for {
		message, err := stream.Recv()
		must(t, err)
		if message.GetSecrets() != nil {
			return message.GetSecrets(), assignedBefore
		}
		assignedBefore = assignedBefore || len(message.GetAssignments().GetAssign()) > 0
	}
}

func acknowledge(stream sessionClient, applied ...*v1.SecretApplied) error {
	return stream.Send(&v1.SessionUp{Message: &v1.SessionUp_Secrets{Secrets: &v1.SecretsUp{Applied: applied}}})
}

// marker is a value that must appear nowhere.
const marker = "hunter2-marker"

func TestSecretIsSetAndNeverShown(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	request := &v1.SetSecretRequest{Name: "db-password", Value: []byte(marker), Spec: &v1.SecretSpec{Audience: []string{"web", "api"}, Ttl: "720h"}, IdempotencyKey: "once"}
	made, err := op.secrets().SetSecret(c.ctx, request)
	must(t, err)
	status := made.GetStatus()
	if status.GetVersion() != 1 || len(status.GetVersions()) != 1 || status.GetVersions()[0].GetSize() != int64(len(marker)) || status.GetVersions()[0].GetAuthor() == "" {
		t.Errorf("it is %v", made)
	}
	if lives := status.GetVersions()[0].GetExpireTime().AsTime().Sub(status.GetVersions()[0].GetCreateTime().AsTime()); lives != 720*time.Hour {
		t.Errorf("the version lives for %s", lives)
	}
	again, err := op.secrets().SetSecret(c.ctx, request)
	if err != nil || again.GetStatus().GetVersion() != 1 {
		t.Errorf("a repeated call made %v, %v", again, err)
	}
	other := proto.CloneOf(request)
	other.Value = []byte("another value")
	_, err = op.secrets().SetSecret(c.ctx, other)
	wantCode(t, err, codes.InvalidArgument, "this idempotency key was used for a different request")

	// Each call makes another version; without a value only the spec changes.
	if second := c.keepSecret(op, "db-password", marker+"2"); second.GetStatus().GetVersion() != 2 || len(second.GetSpec().GetAudience()) != 2 || second.GetStatus().GetVersions()[0].GetNumber() != 2 {
		t.Errorf("after another value it is %v", second)
	}
	changed, err := op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "db-password", Spec: &v1.SecretSpec{}})
	if err != nil || changed.GetStatus().GetVersion() != 2 || len(changed.GetSpec().GetAudience()) != 0 || changed.GetStatus().GetVersions()[0].GetExpireTime() != nil {
		t.Errorf("with another spec it is %v, %v", changed, err)
	}
	rotated, err := op.secrets().RotateSecret(c.ctx, &v1.RotateSecretRequest{Name: "db-password", Length: 20})
	if err != nil || rotated.GetStatus().GetVersion() != 3 || rotated.GetStatus().GetVersions()[0].GetSize() != 20 {
		t.Errorf("rotated it is %v, %v", rotated, err)
	}

	_, err = viewer.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "x", Value: []byte(marker)})
	wantCode(t, err, codes.PermissionDenied, "")
	_, err = op.secrets().RotateSecret(c.ctx, &v1.RotateSecretRequest{Name: "db-pasword"})
	wantCode(t, err, codes.NotFound, "secret db-pasword does not exist in namespace default; did you mean db-password?")
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "new", Spec: &v1.SecretSpec{}})
	wantCode(t, err, codes.FailedPrecondition, "give it a value with: cloudless secret set new")
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "db-password", Value: []byte(marker), IfVersion: proto.Uint64(0)})
	wantCode(t, err, codes.AlreadyExists, "secret db-password exists already")
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "db-password", Value: []byte(marker), IfVersion: proto.Uint64(2)})
	wantCode(t, err, codes.Aborted, "is at version 3 and not 2")
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "db-password", Spec: &v1.SecretSpec{Ttl: "0s"}})
	wantCode(t, err, codes.InvalidArgument, "spec.ttl: must be more than 0")

	// What viewers and auditors can read has the value nowhere, and neither has the state or the log.
	got, err := viewer.secrets().GetSecret(c.ctx, &v1.GetSecretRequest{Name: "db-password"})
	must(t, err)
	listed, err := viewer.secrets().ListSecrets(c.ctx, &v1.ListSecretsRequest{})
	must(t, err)
	events, err := viewer.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	all := prototext.Format(got) + prototext.Format(listed) + prototext.Format(events) + c.log.String()
	var stored bytes.Buffer
	must(t, c.Store.Snapshot().Save(&stored))
	hidden := []string{marker, base64.StdEncoding.EncodeToString([]byte(marker))}
	for _, text := range hidden {
		if strings.Contains(all, text) || strings.Contains(stored.String(), text) {
			t.Errorf("%q can be read", text)
		}
	}
	for _, want := range []string{"Created", "Set", "Updated", "Rotated"} {
		if !slices.ContainsFunc(events.GetItems(), func(e *v1.Event) bool {
			return e.GetSpec().GetReason() == want && e.GetSpec().GetObjectName() == "db-password"
		}) {
			t.Errorf("there is no event %s", want)
		}
	}
}

func TestValueAboveTheLimitIsRefusedAtEveryEntrance(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	exact := bytes.Repeat([]byte("x"), secret.MaxSize)
	_, err := op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "exact", Value: exact})
	must(t, err)
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "large", Value: append(exact, 'x')})
	wantCode(t, err, codes.InvalidArgument, "value: must be 1 byte to 1 MiB long: keep larger data in a volume or an object")
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "empty", Value: []byte{}})
	wantCode(t, err, codes.InvalidArgument, "value: must be 1 byte to 1 MiB long")
	body := fmt.Sprintf(`{"name":"large","value":%q}`, base64.StdEncoding.EncodeToString(append(exact, 'x')))
	response, text := c.request(nil, http.MethodPost, "/v1/secrets", body, "Authorization", "Bearer "+op.token)
	if response.StatusCode != http.StatusBadRequest || !strings.Contains(text, "must be 1 byte to 1 MiB long") {
		t.Errorf("over HTTP: %d %.300s", response.StatusCode, text)
	}
}

// Errors of a decoder may quote what it reads.
func TestAnUndecodableValueIsNotQuoted(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	for _, body := range []string{
		`{"name":"x","value":"` + marker + ` ?"}`, `{"name":"x","value":` + marker + `}`, `{"name":"x","value":["` + marker + `"]}`,
		`{"name":"x","value":"` + marker, `{"name":"x","value":{"a":"` + marker + `"}}`, `{"name":"x","value":"\u12` + marker + `"}`,
	} {
		response, text := c.request(nil, http.MethodPost, "/v1/secrets", body, "Authorization", "Bearer "+op.token)
		if response.StatusCode != http.StatusBadRequest || strings.Contains(text, marker) {
			t.Errorf("%s: %d %s", body, response.StatusCode, text)
		}
	}
	if strings.Contains(c.log.String(), marker) {
		t.Error("the log has it")
	}
}

func TestReplicasWaitForTheirSecretAndThenGetIt(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	m, other := c.join("n1"), c.join("n2")
	stream := m.connect(c.ctx)
	if down, before := receiveSecrets(t, stream); !down.GetFull() || len(down.GetSecrets()) != 0 || before {
		t.Fatalf("a node without secrets got %v", down)
	}
	c.until(func(snap *state.Snapshot) bool { return snap.Node(m.uid()).GetStatus().GetState() == spec.NodeReady })
	plan, err := op.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(workload("web", using(&v1.SecretRef{Name: "db", Env: "DB"})))})
	must(t, err)
	if waits := plan.GetChanges()[0].GetWaitsFor(); !strings.HasPrefix(waits, "waits for secret db: it does not exist; set it with: cloudless secret set db") {
		t.Errorf("the plan says %q: %v", waits, plan)
	}
	made, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", using(&v1.SecretRef{Name: "db", Env: "DB"}, &v1.SecretRef{Name: "db", Path: "/run/secrets/db"}))})
	must(t, err)
	uid := made.GetMetadata().GetUid()

	waits := func(want string) {
		t.Helper()
		c.until(func(snap *state.Snapshot) bool {
			for r := range snap.ReplicasOf(uid) {
				return r.GetStatus().GetPhase() == spec.PhasePending && r.GetStatus().GetReason() != ""
			}
			return false
		})
		got, err := viewer.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
		must(t, err)
		listed, err := viewer.ListReplicas(c.ctx, &v1.ListReplicasRequest{Workload: "web"})
		must(t, err)
		explained, err := viewer.GetExplanation(c.ctx, &v1.GetExplanationRequest{Name: "web"})
		must(t, err)
		for what, reason := range map[string]string{
			"workload": got.GetStatus().GetReason(), "replica": listed.GetItems()[0].GetStatus().GetReason(), "explanation": explained.GetSummary(),
		} {
			if !strings.Contains(reason, want) {
				t.Errorf("the %s says %q, not %q", what, reason, want)
			}
		}
	}
	waits("waits for secret db: it does not exist; set it with: cloudless secret set db")
	c.keepSecret(op, "db", marker, "api")
	waits("waits for secret db: its audience does not include workload web; add it with: cloudless secret set db --keep --also-for web")
	_, err = op.secrets().SetSecret(c.ctx, &v1.SetSecretRequest{Name: "db", Spec: &v1.SecretSpec{Audience: []string{"api", "web"}}})
	must(t, err)

	down, before := receiveSecrets(t, stream)
	if down.GetFull() || before || len(down.GetSecrets()) != 1 {
		t.Fatalf("the node got %v, assigned before: %v", down, before)
	}
	got := down.GetSecrets()[0]
	if got.GetName() != "db" || got.GetVersion() != 1 || string(got.GetValue()) != marker || len(got.GetReplicas()) != 1 {
		t.Errorf("the node got %v", got)
	}
	a := assignments(t, stream).GetAssign()[0]
	if a.GetReplica().GetMetadata().GetUid() != got.GetReplicas()[0] || a.GetRevision().GetSpec().GetSecretVersions()["db"] != 1 {
		t.Errorf("the assignment is %v", a)
	}
	if text := prototext.Format(a); strings.Contains(text, marker) {
		t.Error("the assignment has the value")
	}
	must(t, report(stream, got.GetReplicas()[0], obey(a.GetReplica())))

	// Only the node of the replica may acknowledge, and only what it was sent.
	elsewhere := other.connect(c.ctx)
	must(t, acknowledge(elsewhere, &v1.SecretApplied{SecretUid: got.GetUid(), Version: 1, ReplicaUid: got.GetReplicas()[0]}))
	must(t, acknowledge(stream, &v1.SecretApplied{SecretUid: got.GetUid(), Version: 7, ReplicaUid: got.GetReplicas()[0]},
		&v1.SecretApplied{SecretUid: got.GetUid(), Version: 1, ReplicaUid: got.GetReplicas()[0]}))
	c.until(func(snap *state.Snapshot) bool { return snap.Count(state.KindSecretReceipt) == 1 })
	deliveries, err := viewer.secrets().ListSecretDeliveries(c.ctx, &v1.ListSecretDeliveriesRequest{Name: "db"})
	must(t, err)
	if len(deliveries.GetItems()) != 1 {
		t.Fatalf("the deliveries are %v", deliveries)
	}
	if d := deliveries.GetItems()[0]; d.GetVersion() != 1 || d.GetNode() != "n1" || d.GetWorkload() != "web" || d.GetReplica() != a.GetReplica().GetMetadata().GetName() || d.GetTime() == nil {
		t.Errorf("the delivery is %v", d)
	}
	shown, err := viewer.secrets().GetSecret(c.ctx, &v1.GetSecretRequest{Name: "db"})
	must(t, err)
	if st := shown.GetStatus(); st.GetWanted() != 1 || st.GetDelivered() != 1 || !slices.Equal(st.GetUsedBy(), []string{"web"}) {
		t.Errorf("its status is %v", st)
	}

	_, err = op.secrets().DeleteSecret(c.ctx, &v1.DeleteSecretRequest{Name: "db"})
	wantCode(t, err, codes.FailedPrecondition, "secret db is used by workload web")
	_, err = op.secrets().DeleteSecret(c.ctx, &v1.DeleteSecretRequest{Name: "db", Force: true})
	must(t, err)
	if down, _ := receiveSecrets(t, stream); !slices.Equal(down.GetRemoved(), []string{got.GetUid()}) {
		t.Errorf("after the deletion the node got %v", down)
	}
	c.until(func(snap *state.Snapshot) bool {
		return snap.Count(state.KindSecretReceipt)+snap.Count(state.KindSecretValue)+snap.Count(state.KindSecret) == 0
	})
	if strings.Contains(c.log.String(), marker) {
		t.Error("the log has the value")
	}
}

func TestNewVersionReachesFilesInPlaceAndTheEnvironmentByADeployment(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	m := c.join("n1")
	stream := m.connect(c.ctx)
	receiveSecrets(t, stream)
	c.keepSecret(op, "tls", "one")
	c.keepSecret(op, "db", "one")
	file, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("file", using(&v1.SecretRef{Name: "tls", Path: "/run/secrets/tls"}))})
	must(t, err)
	first, _ := receiveSecrets(t, stream)
	replica := assignments(t, stream).GetAssign()[0].GetReplica()
	must(t, report(stream, replica.GetMetadata().GetUid(), obey(replica)))
	c.keepSecret(op, "tls", "two")
	second, _ := receiveSecrets(t, stream)
	if len(second.GetSecrets()) != 2 || string(second.GetSecrets()[0].GetValue()) != "two" || !slices.Equal(second.GetSecrets()[0].GetReplicas(), first.GetSecrets()[0].GetReplicas()) {
		t.Fatalf("the node got %v", second)
	}
	if gone := second.GetSecrets()[1]; gone.GetVersion() != 1 || len(gone.GetReplicas()) != 0 || len(gone.GetValue()) != 0 {
		t.Errorf("of the old version, which is for no replica any more, it got %v", gone)
	}
	c.until(func(snap *state.Snapshot) bool { // nothing needs the first value any more
		return snap.SecretValue(secret.ValueUID(first.GetSecrets()[0].GetUid(), 1)) == nil
	})
	if r := c.Store.Snapshot().Workload(file.GetMetadata().GetUid()); r.GetStatus().GetRevision() != 1 {
		t.Errorf("a workload with files is at revision %d", r.GetStatus().GetRevision())
	}

	variable, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("variable", using(&v1.SecretRef{Name: "db", Env: "DB"}))})
	must(t, err)
	c.keepSecret(op, "db", "two")
	snap := c.until(func(snap *state.Snapshot) bool {
		return snap.Workload(variable.GetMetadata().GetUid()).GetStatus().GetRevision() == 2
	})
	w := snap.Workload(variable.GetMetadata().GetUid())
	if got := snap.Revision(w.GetStatus().GetRevisionUid()).GetSpec(); got.GetSecretVersions()["db"] != 2 || got.GetRestart() != 1 {
		t.Errorf("the new revision is %v", got)
	}
	if d := snap.Deployment(w.GetStatus().GetDeploymentUid()); d.GetSpec().GetAuthor() != "secret/db" || d.GetSpec().GetCause() != spec.CauseRestart {
		t.Errorf("its deployment is %v", d)
	}
	if c.hasEvent("SecretChanged", "variable", "version 2 of secret db") == nil {
		t.Error("there is no event")
	}
	// After a rollback the version is not tried again.
	_, err = op.RollbackWorkload(c.ctx, &v1.RollbackWorkloadRequest{Name: "variable", Revision: "1"})
	must(t, err)
	c.keepSecret(op, "unrelated", "wakes the loop")
	c.keepSecret(op, "db", "three")
	c.until(func(snap *state.Snapshot) bool {
		return snap.Workload(variable.GetMetadata().GetUid()).GetStatus().GetRevision() == 3
	})
}

// hasEvent finds an event about an object.
func (c *cluster) hasEvent(reason, object, message string) *v1.Event {
	for e := range c.Store.Snapshot().OldestEvents() {
		if s := e.GetSpec(); s.GetReason() == reason && s.GetObjectName() == object && strings.Contains(s.GetMessage(), message) {
			return e
		}
	}
	return nil
}

// An update that waits for a secret stops nothing: what runs goes on until the new replicas can start.
func TestUpdateThatWaitsForASecretKeepsWhatRuns(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", idle)
	for _, strategy := range []string{spec.StrategyRolling, spec.StrategyRecreate} {
		update := func(w *v1.Workload) {
			w.Spec.Replicas, w.Spec.Update = proto.Int32(2), &v1.Update{Strategy: strategy}
		}
		made := c.create(op, workload(strategy, update))
		_, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload(strategy, update, using(&v1.SecretRef{Name: strategy, Env: "DB"}))})
		must(t, err)
		uid := made.GetMetadata().GetUid()
		// A later change of another workload has been settled, so the update was, too.
		c.create(op, workload(strategy+"-later"))
		snap := c.Store.Snapshot()
		running := 0
		for r := range snap.ReplicasOf(uid) {
			if r.GetStatus().GetPhase() == spec.PhaseRunning && r.GetSpec().GetDesired() == spec.DesiredRunning {
				running++
			}
		}
		if running != 2 {
			t.Errorf("%s: %d replicas run", strategy, running)
		}
		got, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: strategy})
		must(t, err)
		if reason := got.GetStatus().GetReason(); !strings.Contains(reason, "waits for secret "+strategy) {
			t.Errorf("%s: the reason is %q", strategy, reason)
		}
		c.keepSecret(op, strategy, "value")
		c.until(func(snap *state.Snapshot) bool {
			current := 0
			for r := range snap.ReplicasOf(uid) {
				if r.GetSpec().GetRevision() == 2 && r.GetStatus().GetPhase() == spec.PhaseRunning {
					current++
				}
			}
			return current == 2
		})
	}
}
