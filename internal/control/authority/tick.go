package authority

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Patience is how long a step waits for members. They miss the rotation afterwards, and have to join again with a token.
const Patience = 24 * time.Hour

// sealGrace is how long the old key-encryption key stays after nothing was found that it has sealed. [Keys.SealedNow] keeps
// new values of it out of the state; the grace is for servers of an earlier release, which do not ask for that.
const sealGrace = 5 * time.Second

// Reports are what members say of themselves, by uid. Members that cannot be reached now are missing.
type Reports struct {
	Servers map[string]ServerReport
	Nodes   map[string]NodeReport
}

// ServerReport is what a server says.
type ServerReport struct {
	// Authorities are the fingerprints of those that it trusts, its issuer first.
	Authorities []string
	// Keys are the ids of the keys in its file, the one that seals first.
	Keys []string
}

// NodeReport is what a connected node says; empty if it has said nothing yet.
type NodeReport struct {
	Trusted []string
	Issuer  string
}

// Fingerprint is that of an authority's certificate, as members report it.
func Fingerprint(der []byte) string {
	if len(der) == 0 {
		return ""
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// Waiting lists the members that the step of the rotation of the authority waits for.
func Waiting(snap *state.Snapshot, reports Reports) []*v1.AuthorityMember {
	a := snap.Authority()
	var done func(trusted []string, issuer string) bool
	switch active, next := Fingerprint(a.GetCertificate()), Fingerprint(a.GetNextCertificate()); a.GetStep() {
	case StepDistribute:
		done = func(trusted []string, _ string) bool { return slices.Contains(trusted, next) }
	case StepRenew:
		done = func(_ []string, issuer string) bool { return issuer == active }
	case StepDrop:
		done = func(trusted []string, _ string) bool { return slices.Equal(trusted, []string{active}) }
	default:
		return nil
	}
	waiting := servers(snap, reports, a.GetLeftBehind(), func(r ServerReport) bool { return done(r.Authorities, first(r.Authorities)) })
	for n := range snap.Nodes("") {
		r, reachable := reports.Nodes[uid(n)]
		if reachable && done(r.Trusted, r.Issuer) || slices.Contains(a.GetLeftBehind(), uid(n)) {
			continue
		}
		waiting = append(waiting, &v1.AuthorityMember{Kind: "node", Name: n.GetMetadata().GetName(), Uid: uid(n), Reachable: reachable})
	}
	return waiting
}

// KEKWaiting lists the servers that the step of the rotation of the key-encryption key waits for.
func KEKWaiting(snap *state.Snapshot, reports Reports) []*v1.AuthorityMember {
	k := snap.KeyEncryptionKey()
	var done func(ServerReport) bool
	switch k.GetStep() {
	case StepDistribute:
		done = func(r ServerReport) bool { return slices.Contains(r.Keys, k.GetNextId()) }
	case StepSeal:
		done = func(r ServerReport) bool { return first(r.Keys) == k.GetId() }
	case StepDrop:
		done = func(r ServerReport) bool { return slices.Equal(r.Keys, []string{k.GetId()}) }
	default:
		return nil
	}
	return servers(snap, reports, k.GetLeftBehind(), done)
}

func servers(snap *state.Snapshot, reports Reports, left []string, done func(ServerReport) bool) (waiting []*v1.AuthorityMember) {
	for s := range snap.Servers("") {
		r, reachable := reports.Servers[uid(s)]
		if reachable && done(r) || slices.Contains(left, uid(s)) {
			continue
		}
		waiting = append(waiting, &v1.AuthorityMember{Kind: "server", Name: s.GetMetadata().GetName(), Uid: uid(s), Reachable: reachable})
	}
	return waiting
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// blocked reports whether members keep a step from ending. Those that cannot be reached do not keep anything from being
// dropped: they hear of that when they are back. One that is connected and never done is as good as gone.
func blocked(now time.Time, waiting []*v1.AuthorityMember, step string, since *timestamppb.Timestamp) bool {
	return now.Sub(since.AsTime()) < Patience && slices.ContainsFunc(waiting, func(m *v1.AuthorityMember) bool {
		return m.GetReachable() || step != StepDrop
	})
}

// overdue is how long a step may wait before that is a problem.
const overdue = 10 * time.Minute

// Overdue reports whether a step waits for too long.
func Overdue(now time.Time, snap *state.Snapshot) bool {
	a, k := snap.Authority(), snap.KeyEncryptionKey()
	return late(now, a.GetStep(), a.GetStepTime()) || late(now, k.GetStep(), k.GetStepTime())
}

func late(now time.Time, step string, since *timestamppb.Timestamp) bool {
	return step != "" && now.Sub(since.AsTime()) > overdue
}

// Problems says for which members a step waits for too long, and the way out. Without reports it cannot name them.
func Problems(now time.Time, snap *state.Snapshot, reports *Reports) (problems []string) {
	a, k := snap.Authority(), snap.KeyEncryptionKey()
	say := func(what, still, command, step string, since *timestamppb.Timestamp, waiting func(*state.Snapshot, Reports) []*v1.AuthorityMember) {
		if !late(now, step, since) {
			return
		}
		sentence := "the " + what + " is being replaced, and step " + step + " has waited for " +
			spec.FormatDuration(now.Sub(since.AsTime()).Truncate(time.Minute)) + ", while the old one " + still
		var members []*v1.AuthorityMember
		if reports != nil {
			members = waiting(snap, *reports)
		}
		if len(members) == 0 {
			problems = append(problems, sentence+": see what it waits for with: cloudless ca status, and the log of the server that leads")
			return
		}
		const most = 5
		var names []string
		for _, m := range members[:min(len(members), most)] {
			name := m.GetKind() + " " + m.GetName()
			if !m.GetReachable() {
				name += " (cannot be reached)"
			}
			names = append(names, name)
		}
		more := ""
		if n := len(members) - len(names); n > 0 {
			more = " and " + strconv.Itoa(n) + " more"
		}
		problems = append(problems, sentence+", for "+strings.Join(names, ", ")+more+": start what is off, or go on without a member, "+
			"which must join again with a token then, with: "+command+" --leave "+members[0].GetName())
	}
	say("certificate authority", "is trusted", "cloudless ca rotate", a.GetStep(), a.GetStepTime(), Waiting)
	say("key-encryption key", "stays in use", "cloudless ca rotate --only-kek", k.GetStep(), k.GetStepTime(), KEKWaiting)
	return problems
}

// left says which members a step did not wait for any longer.
func left(waiting []*v1.AuthorityMember, member string) string {
	return "; " + spec.Count(len(waiting), member) + " could not be reached or did not follow for a day and must join again with a token"
}

const mostUnreadable = 10

// noteUnreadable names what no key opens, so that somebody sets it again.
func noteUnreadable(now time.Time, snap *state.Snapshot, b *state.Batch, names []string, actor string) {
	if len(names) == 0 {
		return
	}
	more := ""
	if n := len(names) - mostUnreadable; n > 0 {
		more = " and " + strconv.Itoa(n) + " more"
	}
	b.Create(state.NewEvent(state.NewUID(), now, snap.Cluster(), state.SeverityWarning, "Unreadable", "no key-encryption key opens what is sealed of "+
		strings.Join(names[:min(len(names), mostUnreadable)], ", ")+more+": set it again or delete it; cloudless ca status lists all", actor))
}

// Tick takes the step of a rotation that is due, if there is one.
func (k Keys) Tick(now time.Time, snap *state.Snapshot, reports Reports, self string, resealer *Resealer, b *state.Batch) error {
	if snap.Authority() == nil || k.Sealer == nil {
		return nil
	}
	actor := "server/" + cmp.Or(snap.Server(self).GetMetadata().GetName(), self)
	if err := k.tickAuthority(now, snap, reports, self, actor, b); err != nil || b.Len() > 0 {
		return err
	}
	return k.tickKEK(now, snap, reports, self, actor, resealer, b)
}

func (k Keys) tickAuthority(now time.Time, snap *state.Snapshot, reports Reports, self, actor string, b *state.Batch) error {
	old := snap.Authority()
	a := proto.CloneOf(old)
	if a.GetStep() == "" {
		if a.GetAgain() == "" {
			return nil
		}
		if err := k.begin(now, snap, b, a, a.GetAgain(), actor); err != nil {
			return err
		}
		b.Update(a, old.GetMetadata().GetVersion())
		return nil
	}
	if a.GetStep() == StepRenew && first(reports.Servers[self].Authorities) == Fingerprint(a.GetCertificate()) {
		if renewHosts(snap, b); b.Len() > 0 {
			return nil
		}
	}
	waiting := Waiting(snap, reports)
	if blocked(now, waiting, a.GetStep(), a.GetStepTime()) {
		return nil
	}
	missed := ""
	if len(waiting) > 0 && a.GetStep() != StepDrop {
		missed = left(waiting, "member")
		for _, m := range waiting {
			a.LeftBehind = union(a.LeftBehind, []string{m.GetUid()})
		}
	}
	a.StepTime = timestamppb.New(now)
	switch a.GetStep() {
	case StepDistribute:
		a.Step = StepRenew
		a.PreviousCertificate, a.Certificate, a.SealedKey = a.GetCertificate(), a.GetNextCertificate(), a.GetSealedNextKey()
		a.NextCertificate, a.SealedNextKey = nil, nil
		note(now, snap, b, "AuthorityRotation", "all members trust the new certificate authority, which signs from now on"+missed, actor)
	case StepRenew:
		a.Step, a.PreviousCertificate = StepDrop, nil
		a.Endorsements = byFormer(a)
		note(now, snap, b, "AuthorityRotation", "all members have certificates of the new authority: the old one is no longer trusted"+missed, actor)
	case StepDrop:
		a.Step, a.StepTime, a.LeftBehind = "", nil, nil
		note(now, snap, b, "AuthorityRotated", "the certificate authority was replaced: "+a.GetReason(), actor)
	}
	if err := publish(snap, b, a); err != nil {
		return err
	}
	b.Update(a, old.GetMetadata().GetVersion())
	return nil
}

// byFormer leaves out the endorsements of the former authority by the one that signs: nobody needs them any more.
func byFormer(a *statev1.Authority) (kept [][]byte) {
	root, err := x509.ParseCertificate(a.GetCertificate())
	if err != nil {
		return nil
	}
	for _, der := range a.GetEndorsements() {
		if one, err := x509.ParseCertificate(der); err == nil && one.CheckSignatureFrom(root) != nil {
			kept = append(kept, der)
		}
	}
	return newest(kept)
}

// renewHosts makes the certificates of routes due that are from a former authority.
func renewHosts(snap *state.Snapshot, b *state.Batch) {
	root, err := x509.ParseCertificate(snap.Authority().GetCertificate())
	if err != nil {
		return
	}
	for c := range snap.Certificates("", "") {
		block, _ := pem.Decode([]byte(c.GetSpec().GetChain()))
		if c.GetSpec().GetSource() != spec.TLSCluster || block == nil || c.GetStatus().GetNextTry() == nil {
			continue
		}
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil && leaf.CheckSignatureFrom(root) == nil {
			continue
		}
		now := proto.CloneOf(c)
		now.Status.NextTry = nil
		b.Update(now, c.GetMetadata().GetVersion())
		if b.Len() >= maxResealed {
			return
		}
	}
}

func (k Keys) tickKEK(now time.Time, snap *state.Snapshot, reports Reports, self, actor string, resealer *Resealer, b *state.Batch) error {
	old := snap.KeyEncryptionKey()
	if old == nil {
		return nil
	}
	kek := proto.CloneOf(old)
	if kek.GetStep() == "" {
		if kek.GetAgain() == "" {
			return nil
		}
		if err := k.beginKEK(now, snap, b, kek, kek.GetAgain(), actor); err != nil {
			return err
		}
		b.Update(kek, old.GetMetadata().GetVersion())
		return nil
	}
	waiting := KEKWaiting(snap, reports)
	if kek.GetStep() == StepSeal && k.Sealer.KeyID() == kek.GetId() {
		complete, err := resealer.Reseal(snap, b)
		if err != nil {
			return err
		}
		if b.Len() > 0 {
			// The grace begins with the last value that the old key has sealed.
			kek.StepTime = timestamppb.New(now)
			b.Update(kek, old.GetMetadata().GetVersion())
		}
		if !complete || now.Sub(kek.GetStepTime().AsTime()) < sealGrace {
			return nil
		}
	}
	if blocked(now, waiting, kek.GetStep(), kek.GetStepTime()) {
		return nil
	}
	missed := ""
	if len(waiting) > 0 && kek.GetStep() != StepDrop {
		missed = left(waiting, "server")
		for _, m := range waiting {
			kek.LeftBehind = union(kek.LeftBehind, []string{m.GetUid()})
		}
	}
	kek.StepTime = timestamppb.New(now)
	switch kek.GetStep() {
	case StepDistribute:
		kek.Step, kek.PreviousId, kek.Id, kek.NextId, kek.SealedNext = StepSeal, kek.GetId(), kek.GetNextId(), "", nil
		note(now, snap, b, "KeyRotation", "all servers have the new key-encryption key, which seals from now on"+missed, actor)
	case StepSeal:
		by, total := Count(snap, kek.GetId())
		what := "all " + strconv.FormatInt(total, 10)
		if by < total {
			what = strconv.FormatInt(by, 10) + " of " + strconv.FormatInt(total, 10)
			noteUnreadable(now, snap, b, Unreadable(snap, k.Sealer), actor)
		}
		kek.Step = StepDrop
		note(now, snap, b, "KeyRotation", what+" sealed values are sealed by the new key-encryption key: the old one is removed"+missed, actor)
	case StepDrop:
		kek.Step, kek.StepTime, kek.PreviousId, kek.LeftBehind = "", nil, "", nil
		note(now, snap, b, "KeyRotated", "the key-encryption key was replaced: "+kek.GetReason(), actor)
	}
	b.Update(kek, old.GetMetadata().GetVersion())
	return nil
}

// Report is the state of the keys as users see it.
func Report(snap *state.Snapshot, reports Reports, sealer *identity.Sealer) *v1.AuthorityReport {
	a, k := snap.Authority(), snap.KeyEncryptionKey()
	sealing := ""
	if sealer != nil {
		sealing = sealer.KeyID()
	}
	r := &v1.AuthorityReport{
		Step: a.GetStep(), Waiting: Waiting(snap, reports), RotateTime: a.GetRotateTime(), Reason: a.GetReason(), StepTime: a.GetStepTime(),
		Kek: cmp.Or(k.GetId(), sealing), KekStep: k.GetStep(), KekWaiting: KEKWaiting(snap, reports), KekRotateTime: k.GetRotateTime(), KekReason: k.GetReason(),
	}
	r.Sealed, r.SealedTotal = Count(snap, r.GetKek())
	r.Unreadable = Unreadable(snap, sealer)
	for _, one := range []struct {
		der   []byte
		state string
	}{{a.GetNextCertificate(), "next"}, {a.GetCertificate(), "active"}, {a.GetPreviousCertificate(), "previous"}} {
		cert, err := x509.ParseCertificate(one.der)
		if err != nil {
			continue
		}
		r.Certificates = append(r.Certificates, &v1.AuthorityCertificate{
			Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one.der})), Fingerprint: Fingerprint(one.der),
			ExpireTime: timestamppb.New(cert.NotAfter), State: one.state,
		})
	}
	return r
}
