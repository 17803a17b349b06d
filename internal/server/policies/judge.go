package policies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// judge judges the changes of one transaction.
type judge struct {
	caller core.Principal
	now    time.Time
	base   *state.Snapshot
	batch  *state.Batch

	// policies are compiled at the first change.
	policies []*policy.Policy
	read     bool
}

func (j *judge) of(ctx context.Context, c Change) []*v1.PolicyFinding {
	kind := nounOf(c.Object)
	var found []*v1.PolicyFinding
	if c.Verb != policy.Delete {
		found = append(j.accesses(kind, c), j.ceilings(c)...)
	}
	request := policy.Request{Kind: kind, Verb: c.Verb, Object: c.Object, Before: c.Before, Caller: j.callerOf(c.Object.GetMetadata().GetNamespace()), Now: j.now}
	for _, p := range j.all() {
		found = append(found, p.Judge(ctx, &request)...)
	}
	return found
}

// callerOf is the caller as rules about an object of a namespace see it, with the roles that count there.
func (j *judge) callerOf(namespace string) *v1.PolicyCaller {
	id := j.caller.ID
	seen := &v1.PolicyCaller{Groups: j.caller.Groups}
	if !id.IsZero() {
		seen.Id, seen.User = string(id.Kind())+"/"+j.caller.Name(), j.caller.Name() // as in events
	}
	if !j.caller.IsUser() && j.caller.Role != "" {
		seen.Roles = []string{j.caller.Role}
	}
	for _, granted := range j.caller.Permissions.Grants() {
		if granted.Namespace == "" || granted.Namespace == namespace {
			seen.Roles = append(seen.Roles, granted.Role)
		}
	}
	return seen
}

// all are the policies as the transaction leaves them.
func (j *judge) all() []*policy.Policy {
	if j.read {
		return j.policies
	}
	j.read = true
	written := map[string]bool{}
	for p := range state.Puts[*v1.Policy](j.batch) {
		written[p.GetMetadata().GetUid()] = true
		j.policies = append(j.policies, policy.Compiled(p))
	}
	for p := range j.base.Policies("") {
		if uid := p.GetMetadata().GetUid(); !written[uid] && !j.batch.Deletes(state.KindPolicy, uid) {
			j.policies = append(j.policies, policy.Compiled(p))
		}
	}
	return j.policies
}

// accesses are the built-in rules: what an object newly asks of machines needs the verb "privileged" on workloads in its
// namespace, or a policy that decides about it.
func (j *judge) accesses(kind string, c Change) (found []*v1.PolicyFinding) {
	asked := policy.Accesses(c.Before, c.Object)
	namespace := c.Object.GetMetadata().GetNamespace()
	if len(asked) == 0 || j.caller.Can(policy.Privileged, string(state.KindWorkload), namespace) {
		return nil
	}
	for _, a := range asked {
		decided := !a.ByRoleOnly && slices.ContainsFunc(j.all(), func(p *policy.Policy) bool { return p.Decides(kind, c.Object.GetMetadata(), a.Rule) })
		if decided {
			continue
		}
		fix := fmt.Sprintf("%s, or ask someone with the role admin, or another role with the verb %q on workloads in namespace %s", a.Otherwise, policy.Privileged, namespace)
		if !a.ByRoleOnly {
			fix += fmt.Sprintf(", or for a policy with a rule named %s that allows it", a.Rule)
		}
		found = append(found, builtIn(kind, c.Object, a.Rule, a.Field, fmt.Sprintf("must not %s: it reaches beyond the workload on its machine, and %s may not ask for that", a.What, j.name()), fix))
	}
	return found
}

func (j *judge) name() string {
	if j.caller.ID.IsZero() {
		return "the caller"
	}
	if j.caller.Role == "" {
		return j.caller.Name()
	}
	return fmt.Sprintf("%s with role %q", j.caller.Name(), j.caller.Role)
}

func builtIn(kind string, o state.Object, rule, field, message, fix string) *v1.PolicyFinding {
	m := o.GetMetadata()
	return &v1.PolicyFinding{
		Policy: policy.BuiltIn, Rule: rule, Mode: policy.Enforce, Kind: kind, Namespace: m.GetNamespace(), Name: m.GetName(),
		Field: field, Message: message, Fix: fix,
	}
}

// ceilings are the limits of a namespace for each of its workloads. A workload that exceeded them before may stay as it is.
func (j *judge) ceilings(c Change) (found []*v1.PolicyFinding) {
	w, ok := c.Object.(*v1.Workload)
	if !ok {
		return nil
	}
	old, _ := c.Before.(*v1.Workload)
	n := j.namespace(w.GetMetadata().GetNamespace())
	name := w.GetMetadata().GetNamespace()
	if why := AbovePriority(n, w); why != "" && (old == nil || spec.PriorityOf(old.GetSpec()) != spec.PriorityOf(w.GetSpec())) {
		found = append(found, builtIn("workload", w, "max-priority", "spec.priority", why,
			fmt.Sprintf("lower it, or raise the ceiling with: cloudless namespace set %s --max-priority %d", name, spec.PriorityOf(w.GetSpec()))))
	}
	profile := w.GetSpec().GetSecurity().GetProfile()
	if why := AboveProfile(n, j.base.Cluster(), w); why != "" && (old == nil || old.GetSpec().GetSecurity().GetProfile() != profile) {
		found = append(found, builtIn("workload", w, "namespace-profile", "spec.security.profile", why,
			fmt.Sprintf("use that profile, or allow more with: cloudless namespace set %s --profile %s", name, orDefaultProfile(profile))))
	}
	return found
}

// namespace is the namespace with a name as the transaction leaves it; nil if it was not created.
func (j *judge) namespace(name string) *v1.Namespace { return NamespaceAfter(j.base, j.batch, name) }

// NamespaceAfter is a namespace as a transaction leaves it; nil if nobody has created it.
func NamespaceAfter(base *state.Snapshot, b *state.Batch, name string) *v1.Namespace {
	for n := range state.Puts[*v1.Namespace](b) {
		if n.GetMetadata().GetName() == name {
			return n
		}
	}
	return base.NamespaceByName(name)
}

// AbovePriority says how the priority of a workload exceeds the ceiling of its namespace; empty if it does not.
func AbovePriority(n *v1.Namespace, w *v1.Workload) string {
	s := n.GetSpec()
	if s == nil || s.MaxPriority == nil || spec.PriorityOf(w.GetSpec()) <= s.GetMaxPriority() {
		return ""
	}
	return fmt.Sprintf("must be at most %d in namespace %s, and is %d", s.GetMaxPriority(), n.GetMetadata().GetName(), spec.PriorityOf(w.GetSpec()))
}

// AboveProfile says how the security profile of a workload exceeds the ceiling of its namespace; empty if it does not, or if
// nobody has set a ceiling.
func AboveProfile(n *v1.Namespace, cluster *v1.Cluster, w *v1.Workload) string {
	ceiling := Ceiling(n, cluster)
	if ceiling == "" || !policy.Exceeds(w.GetSpec().GetSecurity().GetProfile(), ceiling) {
		return ""
	}
	return fmt.Sprintf("must be %q at most in namespace %s, and is %q", ceiling, w.GetMetadata().GetNamespace(), orDefaultProfile(w.GetSpec().GetSecurity().GetProfile()))
}

func orDefaultProfile(profile string) string {
	if profile == "" {
		return "default"
	}
	return profile
}

// Ceiling is the most that workloads of a namespace may name as their profile, empty if nobody has set it.
func Ceiling(n *v1.Namespace, cluster *v1.Cluster) string {
	if own := n.GetSpec().GetProfile(); own != "" {
		return own
	}
	return cluster.GetSpec().GetSecurity().GetProfile()
}

// FillFromNamespace writes what a namespace says into the spec of a workload that does not say it: the security profile, and
// a priority within the ceiling. What needs no writing is left out: "default" is the profile of a workload that has none.
//
// old is the stored workload, if there is one. As long as its author changes nothing, it keeps what it was created with, as
// with the defaults of the cluster.
func FillFromNamespace(s, old *v1.WorkloadSpec, n *v1.Namespace, cluster *v1.Cluster) {
	if s.GetSecurity().GetProfile() == "" {
		profile := Ceiling(n, cluster)
		if profile == "privileged" {
			profile = "" // it is the most that workloads may name, and not what they get unasked
		}
		if had := old.GetSecurity().GetProfile(); old != nil && had != profile && unchangedBut(s, old, func(given *v1.WorkloadSpec) { setProfile(given, had) }) {
			profile = had
		}
		if profile != "default" {
			setProfile(s, profile)
		}
	}
	limits := n.GetSpec()
	if limits == nil || limits.MaxPriority == nil {
		return
	}
	if most := limits.GetMaxPriority(); s.Priority == nil && most < spec.DefaultPriority {
		kept := old != nil && unchangedBut(s, old, func(given *v1.WorkloadSpec) { given.Priority = old.Priority })
		if kept {
			s.Priority = old.Priority
		} else {
			s.Priority = &most
		}
	}
}

// unchangedBut reports whether a given spec is the stored one once it has the stored value of a field.
func unchangedBut(given, old *v1.WorkloadSpec, set func(*v1.WorkloadSpec)) bool {
	same := proto.CloneOf(given)
	set(same)
	return spec.Equal(spec.Normalized(same), old)
}

func setProfile(s *v1.WorkloadSpec, profile string) {
	if s.GetSecurity().GetProfile() == profile {
		return
	}
	if s.Security == nil {
		s.Security = &v1.Security{}
	}
	s.Security.Profile = profile
}
