// Package certificates is the leader's loop that makes, renews and removes the certificates of routes.
//
// Tick is pure: it creates a Certificate for every host of routes with tls mode auto or cluster, removes it with the last
// of them, and says which certificates expire. The loop issues those of the cluster itself, and orders the others from
// the ACME authority, a few at a time. What is known about a failure is in the certificate's status, so that the next
// leader waits as long; orders in progress are lost with the leader.
//
// It knows nothing of nodes: what they answer to the authority is in the state as CertificateChallenge.
package certificates

import (
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// maxChanges keeps one transaction small; the next tick does the rest.
const maxChanges = 256

// Reasons of events.
const (
	eventCreated     = "Created"
	eventDeleted     = "Deleted"
	eventIssued      = "Issued"
	eventRenewed     = "Renewed"
	eventFailed      = "IssueFailed"
	eventNotRenewed  = "RenewalFailed"
	eventExpired     = "Expired"
	eventExpiresSoon = "ExpiresSoon"
	actor            = "certificates"
)

// name is that of a certificate.
type name struct{ namespace, name string }

// need is what routes need.
type need struct{ host, source string }

// needed lists the certificates that routes need of the cluster.
func needed(snap *state.Snapshot) map[name]need {
	all := map[name]need{}
	for r := range snap.Routes("", "") {
		host, mode := r.GetSpec().GetHost(), r.GetSpec().GetTls().GetMode()
		if host == "" || mode != spec.TLSAuto && mode != spec.TLSCluster || r.GetMetadata().GetDeleteTime() != nil {
			continue
		}
		key := name{r.GetMetadata().GetNamespace(), spec.CertificateName(host)}
		// Routes of one host may differ. Everybody trusts what those who trust the cluster's own authority may not.
		if old, known := all[key]; known && old.source == spec.TLSAuto {
			continue
		}
		all[key] = need{host: host, source: mode}
	}
	return all
}

// Tick adds the changes that are due to a batch. If there are too many, the next tick does the rest.
func Tick(now time.Time, snap *state.Snapshot, batch *state.Batch, newUID func() string) {
	t := &tick{now: now, batch: batch, newUID: newUID}
	needs := needed(snap)
	for c := range snap.Certificates("", "") {
		if batch.Len() >= maxChanges {
			return
		}
		key := name{c.GetMetadata().GetNamespace(), c.GetMetadata().GetName()}
		wanted, isNeeded := needs[key]
		delete(needs, key)
		switch {
		case c.GetSpec().GetSource() == spec.TLSOwn:
			t.examine(c, c)
		case !isNeeded:
			t.remove(snap, c)
		default:
			t.examine(c, adopt(c, wanted))
		}
	}
	for key, wanted := range needs {
		if batch.Len() >= maxChanges {
			return
		}
		t.create(key, wanted)
	}
}

// tick collects the changes of one call.
type tick struct {
	now    time.Time
	batch  *state.Batch
	newUID func() string
}

func (t *tick) create(key name, wanted need) {
	made := &v1.Certificate{
		ApiVersion: spec.APIVersion, Kind: "Certificate",
		Metadata: &v1.Metadata{Uid: t.newUID(), Namespace: key.namespace, Name: key.name},
		Spec:     &v1.CertificateSpec{Source: wanted.source, Hosts: []string{wanted.host}},
		Status:   &v1.CertificateStatus{State: spec.CertificatePending},
	}
	t.batch.Create(made)
	t.event(made, state.SeverityInfo, eventCreated, "for routes of "+wanted.host)
}

// adopt gives a certificate the source that its routes ask for now. The old one is served until there is another.
func adopt(c *v1.Certificate, wanted need) *v1.Certificate {
	if c.GetSpec().GetSource() == wanted.source {
		return c
	}
	now := proto.CloneOf(c)
	now.Spec.Source = wanted.source
	retry(now)
	return now
}

// retry makes a certificate due at once.
func retry(c *v1.Certificate) {
	c.Status.NextTry, c.Status.Problem, c.Status.Failures = nil, "", 0
}

// examine notes the end of a certificate, and that its user must replace it.
func (t *tick) examine(stored, now *v1.Certificate) {
	status := now.GetStatus()
	expired := status.GetState() == spec.CertificateReady && !t.now.Before(status.GetNotAfter().AsTime())
	warning := spec.ExpiryWarning(now, t.now)
	warns := now.GetSpec().GetSource() == spec.TLSOwn && warning != status.GetProblem()
	if stored == now && !expired && !warns {
		return
	}
	if stored == now {
		now = proto.CloneOf(stored)
	}
	if warns {
		now.Status.Problem = warning
	}
	if expired {
		now.Status.State = spec.CertificateExpired
	}
	t.batch.Update(now, stored.GetMetadata().GetVersion())
	switch {
	case expired:
		message := now.GetStatus().GetProblem()
		if message == "" {
			message = "it has not been renewed in time"
		}
		t.event(now, state.SeverityWarning, eventExpired, message)
	case warns && warning != "":
		t.event(now, state.SeverityWarning, eventExpiresSoon, warning)
	}
}

func (t *tick) remove(snap *state.Snapshot, c *v1.Certificate) {
	uid := c.GetMetadata().GetUid()
	t.batch.DeleteVersion(state.KindCertificate, uid, c.GetMetadata().GetVersion())
	if snap.CertificateKey(uid) != nil {
		t.batch.Delete(state.KindCertificateKey, uid)
	}
	t.event(c, state.SeverityInfo, eventDeleted, "no route needs it any more")
}

func (t *tick) event(about state.Object, severity, reason, message string) {
	t.batch.Create(state.NewEvent(t.newUID(), t.now, about, severity, reason, message, actor))
}

// due lists the certificates that should be issued now.
func due(now time.Time, snap *state.Snapshot) iter.Seq[*v1.Certificate] {
	return func(yield func(*v1.Certificate) bool) {
		for c := range snap.Certificates("", "") {
			if c.GetSpec().GetSource() != spec.TLSOwn && !tryAt(c).After(now) && !yield(c) {
				return
			}
		}
	}
}

// tryAt is when a certificate should be issued; zero means at once.
func tryAt(c *v1.Certificate) time.Time {
	if c.GetStatus().GetNextTry() == nil {
		return time.Time{}
	}
	return c.GetStatus().GetNextTry().AsTime()
}

// next is when something will be due; false if nothing will.
func next(now time.Time, snap *state.Snapshot) (at time.Time, known bool) {
	hear := func(when time.Time) {
		if when.After(now) && (!known || when.Before(at)) {
			at, known = when, true
		}
	}
	for c := range snap.Certificates("", "") {
		end := c.GetStatus().GetNotAfter()
		if end != nil {
			hear(end.AsTime())
		}
		if c.GetSpec().GetSource() != spec.TLSOwn {
			hear(tryAt(c))
		} else if end != nil {
			hear(end.AsTime().Add(-spec.ExpiresSoon).Add(time.Second))
		}
	}
	return at, known
}

// RenewAt is when a certificate is renewed if nobody suggests another time: after two thirds of its life, and a little
// earlier, differently for each, so that many that were made at once are not renewed at once.
func RenewAt(leaf *x509.Certificate) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	early := time.Duration(float64(life/60) * fraction(leaf.Raw))
	return leaf.NotBefore.Add(life*2/3 - early)
}

// within is a time in a window that the authority suggests, different for each certificate.
func within(leaf *x509.Certificate, start, end time.Time) time.Time {
	return start.Add(time.Duration(float64(max(0, end.Sub(start))) * fraction(leaf.Raw)))
}

// fraction is a number from 0 to 1 that follows from the end of a certificate, which is its signature.
func fraction(raw []byte) float64 {
	if len(raw) < 4 {
		return 0
	}
	return float64(binary.BigEndian.Uint32(raw[len(raw)-4:])) / (1 << 32)
}

const (
	firstBackoff, maxBackoff = 5 * time.Minute, 12 * time.Hour
	// firstPause and maxPause are those after the authority failed for a reason that is not one host's.
	firstPause, maxPause = time.Minute, 30 * time.Minute
)

// backoff is the pause after so many failures, at least as long as the authority asks for. random is from 0 to 1.
func backoff(first, most time.Duration, failures int, asked time.Duration, random float64) time.Duration {
	pause := first << min(max(failures-1, 0), 16)
	if pause <= 0 || pause > most {
		pause = most
	}
	// Up to a fifth more, so that hosts that failed together do not come back together.
	return max(pause, asked) + time.Duration(float64(pause)*random/5)
}

// accountUID names the account at an authority.
func accountUID(directory, email string) string {
	sum := sha256Sum(directory + "\n" + email)
	return hex.EncodeToString(sum[:16])
}
