package server

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// roleService is the RoleService.
//
// No caller can give away more than it has: not by a role, not by a binding and not by a token. Some token or binding
// always gives the role admin in all namespaces.
type roleService struct {
	v1.UnsafeRoleServiceServer
	*collection[*v1.Role]
	bindings *collection[*v1.RoleBinding]
}

// newRoles lists the roles that always exist among the others. They are not stored.
func newRoles(s *Server) *collection[*v1.Role] {
	c := newCollection[*v1.Role](s, state.KindRole)
	c.find = func(snap *state.Snapshot, _, name string) *v1.Role { return roles.Named(name, snap.RoleByName) }
	c.all = func(snap *state.Snapshot, _, after string) iter.Seq[*v1.Role] { return allRoles(snap, after) }
	c.summary = func(r *v1.Role) string { return "it grants " + rulesText(r.GetSpec()) }
	c.frozen = func(r *v1.Role) error {
		if name := r.GetMetadata().GetName(); roles.IsBuiltin(name) {
			return core.Refuse(codes.FailedPrecondition, "role %s always exists and cannot be changed; make one of your own with: cloudless role apply -f role.yaml", name)
		}
		return nil
	}
	c.prepare = func(ctx context.Context, given *v1.Role, p *preparation) (builder[*v1.Role], error) {
		name := given.GetMetadata().GetName()
		if name == core.RoleNode || name == core.RoleServer {
			return nil, invalid("metadata.name", name+" is the role of machines; choose another name")
		}
		if field, problem := roles.Check(given.GetSpec()); problem != "" {
			return nil, invalid(field, problem)
		}
		plain, err := c.preparePlain(ctx, given, p)
		return &grantBuilder[*v1.Role]{builder: plain, check: func(_ *transaction, now *v1.Role) error {
			return mayGive(ctx, now.GetSpec(), "", "role "+name)
		}}, err
	}
	c.remove = func(ctx context.Context, tx *transaction, old *v1.Role) *v1.Role { return c.removePlain(ctx, tx, old) }
	return c
}

func newRoleBindings(s *Server) *collection[*v1.RoleBinding] {
	c := newCollection[*v1.RoleBinding](s, state.KindRoleBinding)
	c.summary = func(b *v1.RoleBinding) string { return bindingText(b.GetSpec()) }
	c.prepare = func(ctx context.Context, given *v1.RoleBinding, p *preparation) (builder[*v1.RoleBinding], error) {
		if b := given.GetSpec(); len(b.GetUsers())+len(b.GetGroups())+len(b.GetTokens()) == 0 {
			return nil, invalid("spec", "binds the role to nobody: name users, groups or tokens")
		}
		plain, err := c.preparePlain(ctx, given, p)
		return &grantBuilder[*v1.RoleBinding]{builder: plain, check: func(tx *transaction, now *v1.RoleBinding) error {
			return mayBind(ctx, tx, now)
		}}, err
	}
	return c
}

// grantBuilder writes an object that gives permissions, if its author has them all.
type grantBuilder[T object] struct {
	builder[T]
	check func(tx *transaction, now T) error
}

func (b *grantBuilder[T]) create(ctx context.Context, tx *transaction) (T, error) {
	if err := b.check(tx, b.wanted()); err != nil {
		return *new(T), err
	}
	return b.builder.create(ctx, tx)
}

func (b *grantBuilder[T]) update(ctx context.Context, tx *transaction, old T) (T, error) {
	if len(spec.DiffObject(old, b.wanted())) > 0 {
		if err := b.check(tx, b.wanted()); err != nil {
			return *new(T), err
		}
	}
	return b.builder.update(ctx, tx, old)
}

// mayGive refuses to give away what the caller does not have itself.
func mayGive(ctx context.Context, given *v1.RoleSpec, namespace, what string) error {
	p := core.Caller(ctx)
	if p.ID.IsZero() {
		return nil
	}
	lacking := p.Permissions.Lacks(given, namespace)
	if lacking == "" {
		return nil
	}
	where := " in all namespaces"
	if namespace != "" {
		where = " in namespace " + namespace
	}
	return core.NewForbidden("%s would grant %s%s, which %s does not have: nobody can give away more than they have; ask an admin, or leave it out",
		what, lacking, where, p.ID.Name())
}

// mayBind refuses a binding to a role or a token that does not exist, and one that gives more than its author has.
func mayBind(ctx context.Context, tx *transaction, b *v1.RoleBinding) error {
	name := b.GetSpec().GetRole()
	role := tx.role(name)
	if role == nil {
		return missingRole(tx.base, "spec.role", name)
	}
	for i, token := range b.GetSpec().GetTokens() {
		if tx.base.TokenByName(token) == nil {
			return invalid(fmt.Sprintf("spec.tokens[%d]", i), fmt.Sprintf("names token %s, which does not exist%s", token,
				notfound.Hint(suggest.To(token, notfound.Names(tx.base.Tokens(""))), "cloudless token ls")))
		}
	}
	return mayGive(ctx, role.GetSpec(), b.GetSpec().GetNamespace(), "binding "+b.GetMetadata().GetName()+" of role "+name)
}

// role finds a role, also one that this transaction writes.
func (tx *transaction) role(name string) *v1.Role {
	for written := range state.Puts[*v1.Role](tx.batch) {
		if written.GetMetadata().GetName() == name {
			return written
		}
	}
	return roles.Named(name, tx.base.RoleByName)
}

func missingRole(snap *state.Snapshot, field, name string) error {
	return invalid(field, fmt.Sprintf("names role %s, which does not exist%s", name,
		notfound.Hint(suggest.To(name, notfound.Names(allRoles(snap, ""))), "cloudless role ls")))
}

func invalid(field, message string) error {
	return &spec.Error{Violations: []spec.Violation{{Field: field, Message: message}}}
}

// allRoles lists all roles by name, those that always exist among them.
func allRoles(snap *state.Snapshot, after string) iter.Seq[*v1.Role] {
	all := slices.AppendSeq(slices.Collect(roles.Builtin()), snap.Roles(""))
	slices.SortFunc(all, func(a, b *v1.Role) int { return strings.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()) })
	return func(yield func(*v1.Role) bool) {
		for _, role := range all {
			if (after == "" || state.Path(role) > after) && !yield(role) {
				return
			}
		}
	}
}

// rulesText is what a role grants, such as "get, logs on workload; get on event".
func rulesText(r *v1.RoleSpec) string {
	var parts []string
	for _, rule := range r.GetRules() {
		parts = append(parts, strings.Join(rule.GetVerbs(), ", ")+" on "+strings.Join(rule.GetKinds(), ", "))
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// bindingText is a binding in words, such as "operator in shop for group devs".
func bindingText(b *v1.RoleBindingSpec) string {
	var to []string
	for _, named := range []struct {
		noun  string
		names []string
	}{{"user ", b.GetUsers()}, {"group ", b.GetGroups()}, {"token ", b.GetTokens()}} {
		for _, name := range named.names {
			to = append(to, named.noun+name)
		}
	}
	return roles.Granted{Role: b.GetRole(), Namespace: b.GetNamespace()}.String() + " for " + strings.Join(to, ", ")
}

func (s *roleService) CreateRole(ctx context.Context, request *v1.CreateRoleRequest) (*v1.Role, error) {
	return s.create(ctx, request, request.GetRole())
}

func (s *roleService) ApplyRole(ctx context.Context, request *v1.ApplyRoleRequest) (*v1.ApplyRoleResponse, error) {
	role, result, err := s.apply(ctx, request, request.GetRole())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyRoleResponse{Role: role, Result: result}, nil
}

func (s *roleService) UpdateRole(ctx context.Context, request *v1.UpdateRoleRequest) (*v1.Role, error) {
	return s.update(ctx, request.GetRole())
}

// DeleteRole refuses while somebody has the role.
func (s *roleService) DeleteRole(ctx context.Context, request *v1.DeleteRoleRequest) (*v1.Role, error) {
	return s.change(ctx, func(tx *transaction) (*v1.Role, error) {
		if old := s.find(tx.base, "", request.GetName()); old != nil {
			if err := s.frozen(old); err != nil {
				return nil, err
			}
		}
		if users := usersOfRole(tx.base, request.GetName()); users != nil {
			return nil, core.Refuse(codes.FailedPrecondition, "role %s is in use by %s; remove these first", request.GetName(), core.Listed(users))
		}
		return s.deleteIn(ctx, tx, "", request.GetName(), request.GetVersion())
	})
}

// usersOfRole lists the bindings and tokens that give a role.
func usersOfRole(snap *state.Snapshot, name string) (all []string) {
	for b := range snap.RoleBindings("") {
		if b.GetSpec().GetRole() == name {
			all = append(all, "binding "+b.GetMetadata().GetName())
		}
	}
	for t := range snap.Tokens("") {
		if t.GetSpec().GetRole() == name {
			all = append(all, "token "+t.GetMetadata().GetName())
		}
	}
	return all
}

func (s *roleService) GetRole(ctx context.Context, request *v1.GetRoleRequest) (*v1.Role, error) {
	return s.read(ctx, "", request.GetName())
}

func (s *roleService) ListRoles(ctx context.Context, request *v1.ListRolesRequest) (*v1.ListRolesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Role]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	return &v1.ListRolesResponse{Items: items, Next: next}, nil
}

func (s *roleService) CreateRoleBinding(ctx context.Context, request *v1.CreateRoleBindingRequest) (*v1.RoleBinding, error) {
	return s.bindings.create(ctx, request, request.GetRoleBinding())
}

func (s *roleService) ApplyRoleBinding(ctx context.Context, request *v1.ApplyRoleBindingRequest) (*v1.ApplyRoleBindingResponse, error) {
	binding, result, err := s.bindings.apply(ctx, request, request.GetRoleBinding())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyRoleBindingResponse{RoleBinding: binding, Result: result}, nil
}

func (s *roleService) DeleteRoleBinding(ctx context.Context, request *v1.DeleteRoleBindingRequest) (*v1.RoleBinding, error) {
	return s.bindings.delete(ctx, "", request.GetName(), request.GetVersion())
}

func (s *roleService) GetRoleBinding(ctx context.Context, request *v1.GetRoleBindingRequest) (*v1.RoleBinding, error) {
	return s.bindings.read(ctx, "", request.GetName())
}

func (s *roleService) ListRoleBindings(ctx context.Context, request *v1.ListRoleBindingsRequest) (*v1.ListRoleBindingsResponse, error) {
	items, next, err := s.bindings.list(ctx, request.GetPage(), selection[*v1.RoleBinding]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	return &v1.ListRoleBindingsResponse{Items: items, Next: next}, nil
}

// CanI answers for the caller, or for another user if the caller may read bindings.
func (s *roleService) CanI(ctx context.Context, request *v1.CanIRequest) (*v1.CanIResponse, error) {
	if problem := roles.UnknownVerb(request.GetVerb()); problem != "" {
		return nil, invalid("verb", problem)
	}
	if problem := roles.UnknownKind(request.GetKind()); problem != "" {
		return nil, invalid("kind", problem)
	}
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	p, who := core.Caller(ctx), core.Caller(ctx).ID.Name()
	if request.GetUser() != "" || len(request.GetGroups()) > 0 {
		if err := s.Require(ctx, api.VerbGet, "rolebinding", "", "ask what others may do"); err != nil {
			return nil, err
		}
		who = request.GetUser()
		p.Permissions = roles.Of(roles.Subject{User: request.GetUser(), Groups: request.GetGroups()}, snap.RoleByName, snap.RoleBindings(""))
	} else if !p.IsUser() {
		return nil, core.Refuse(codes.InvalidArgument, "%s has the certificate of a %s, and no role limits it", who, p.Role)
	}
	need := core.Need{Verbs: []string{request.GetVerb()}, Kind: request.GetKind(), Namespace: request.GetNamespace()}
	answer := &v1.CanIResponse{Allowed: need.Met(p), Roles: roles.Sufficient(need.Verbs, need.Kind, need.Namespace, snap.Roles(""))}
	held := roles.Text(p.Permissions.Grants())
	switch {
	case held == "":
		answer.Reason = who + " has no role; " + core.WayOut(snap, need)
	case answer.Allowed:
		answer.Reason = fmt.Sprintf("%s has role %s", who, held)
	case !roles.Scoped(need.Verbs[0], need.Kind) && need.Namespace != "":
		need.Namespace = ""
		answer.Roles = roles.Sufficient(need.Verbs, need.Kind, "", snap.Roles(""))
		answer.Reason = fmt.Sprintf("%s has role %s, and %s is in no namespace; %s", who, held, need.Kind, core.WayOut(snap, need))
	default:
		answer.Reason = fmt.Sprintf("%s has role %s; %s", who, held, core.WayOut(snap, need))
	}
	return answer, nil
}

// checkAdmins refuses a batch after which nobody would have the role admin in all namespaces any more.
//
// It relies on what gives the role to somebody: if that changes meanwhile, the batch is built again.
func (s *Server) checkAdmins(base *state.Snapshot, b *state.Batch) error {
	// The configuration names the provider at which users log in.
	if !b.Concerns(state.KindToken, state.KindRole, state.KindRoleBinding, state.KindCluster) || !isAdministered(base, s) {
		return nil
	}
	fork := base.Fork()
	if _, err := fork.Apply(b.Transaction(s.Now())); err != nil {
		return nil // the proposal fails in the same way, and says so
	}
	after := fork.Snapshot()
	for t, by := range s.admins(after) {
		// An object of this batch is relied on already, by the version that it replaces.
		rely := func(kind state.Kind, before, now *v1.Metadata) {
			if before != nil && before.GetVersion() == now.GetVersion() {
				b.Check(kind, now.GetUid(), now.GetVersion())
			}
		}
		if t != nil {
			rely(state.KindToken, base.Token(t.GetMetadata().GetUid()).GetMetadata(), t.GetMetadata())
			return nil
		}
		rely(state.KindRoleBinding, base.RoleBinding(by.GetMetadata().GetUid()).GetMetadata(), by.GetMetadata())
		rely(state.KindCluster, base.Cluster().GetMetadata(), after.Cluster().GetMetadata())
		return nil
	}
	return core.Refuse(codes.FailedPrecondition, "nobody would have the role %s in all namespaces any more, and nobody could change the cluster: give it to somebody else first, with: cloudless token create --role %s",
		roles.Admin, roles.Admin)
}

func isAdministered(snap *state.Snapshot, s *Server) bool {
	for range s.admins(snap) {
		return true
	}
	return false
}

// shortestRest is how long a token must be valid yet to count as that of an admin: long enough to create another one.
const shortestRest = time.Minute

// lasts reports whether the bearer of a token can keep using it. The login of a user lasts only for hours.
func (s *Server) lasts(t *v1.TokenSpec) bool {
	now := s.Now()
	soon := now.Add(shortestRest)
	switch {
	case t.GetUser() != "" || !now.Before(t.GetExpireTime().AsTime()):
		return false
	case soon.Before(t.GetExpireTime().AsTime()):
		return true
	}
	return t.GetRenew() != nil && (t.GetRenewUntil() == nil || soon.Before(t.GetRenewUntil().AsTime()))
}

// admins yields the tokens whose bearers may do everything, and the bindings by which users may. One of both is nil.
func (s *Server) admins(snap *state.Snapshot) iter.Seq2[*v1.Token, *v1.RoleBinding] {
	return func(yield func(*v1.Token, *v1.RoleBinding) bool) {
		for t := range snap.Tokens("") {
			m := t.GetSpec()
			if m.GetRole() == core.RoleNode || m.GetRole() == core.RoleServer || !s.lasts(m) {
				continue
			}
			if auth.PermissionsOf(snap, t).IsAdmin() && !yield(t, nil) {
				return
			}
		}
		if _, offered := spec.OidcOf(snap.Cluster().GetSpec()); !offered {
			return // no user can log in
		}
		for b := range snap.RoleBindings("") {
			if len(b.GetSpec().GetUsers())+len(b.GetSpec().GetGroups()) == 0 {
				continue
			}
			bound := roles.Of(roles.Subject{User: "x"}, snap.RoleByName, slices.Values([]*v1.RoleBinding{{
				Spec: &v1.RoleBindingSpec{Role: b.GetSpec().GetRole(), Namespace: b.GetSpec().GetNamespace(), Users: []string{"x"}},
			}}))
			if bound.IsAdmin() && !yield(nil, b) {
				return
			}
		}
	}
}

// checkNamespaces refuses to create an object in a namespace that does not exist, unless the caller may create namespaces:
// a new one has no quota.
func (s *Server) checkNamespaces(ctx context.Context, tx *transaction) error {
	for o := range state.Puts[state.Object](tx.batch) {
		namespace := o.GetMetadata().GetNamespace()
		if _, byUsers := namespacedKinds()[state.KindOf(o)]; !byUsers || namespace == "" || tx.createsNamespace(namespace) || findNamespace(tx.base, namespace) != nil {
			continue
		}
		if p := core.Caller(ctx); !p.ID.IsZero() && p.IsUser() && !p.Can(api.VerbCreate, "namespace", "") {
			need := core.Need{Verbs: []string{api.VerbCreate}, Kind: "namespace"}
			near := suggest.To(namespace, slices.Values(namespaceNames(tx.base)))
			if near != "" && p.Sees("namespace", near) {
				near = "; did you mean " + near + "?"
			} else {
				near = ""
			}
			return core.NewForbidden("namespace %s does not exist%s, and %s may not create it; ask for it (cloudless namespace create %s), or %s",
				namespace, near, p.ID.Name(), namespace, core.WayOut(tx.base, need))
		}
	}
	return nil
}

func (tx *transaction) createsNamespace(name string) bool {
	for n := range state.Puts[*v1.Namespace](tx.batch) {
		if n.GetMetadata().GetName() == name {
			return true
		}
	}
	return false
}
