package auth

import (
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/state"
)

// maxKnown limits how many tokens have their permissions kept.
const maxKnown = 4096

// permissions keeps what tokens permit, because adding up roles and bindings costs more than a call should. It begins anew
// with every change of a role or a binding.
type permissions struct {
	mu              sync.RWMutex
	roles, bindings state.Generation
	of              map[state.Object]*roles.Permissions // by token or access key
}

// ofToken returns what a token permits in a state.
func (p *permissions) ofToken(snap *state.Snapshot, token *v1.Token) *roles.Permissions {
	return p.known(snap, token, func() *roles.Permissions { return PermissionsOf(snap, token) })
}

// ofKey returns what an access key permits in a state.
func (p *permissions) ofKey(snap *state.Snapshot, key *v1.AccessKey) *roles.Permissions {
	return p.known(snap, key, func() *roles.Permissions {
		subject := roles.Subject{Role: key.GetSpec().GetRole(), Namespace: key.GetMetadata().GetNamespace()}
		return roles.Of(subject, snap.RoleByName, func(func(*v1.RoleBinding) bool) {})
	})
}

func (p *permissions) known(snap *state.Snapshot, of state.Object, sum func() *roles.Permissions) *roles.Permissions {
	rolesNow, bindingsNow := snap.Generation(state.KindRole), snap.Generation(state.KindRoleBinding)
	p.mu.RLock()
	current := p.roles == rolesNow && p.bindings == bindingsNow
	known := p.of[of]
	p.mu.RUnlock()
	if current && known != nil {
		return known
	}
	made := sum()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.roles != rolesNow || p.bindings != bindingsNow || len(p.of) >= maxKnown || p.of == nil {
		p.roles, p.bindings, p.of = rolesNow, bindingsNow, map[state.Object]*roles.Permissions{}
	}
	p.of[of] = made
	return made
}

// PermissionsOf adds up what a token permits in a state.
func PermissionsOf(snap *state.Snapshot, token *v1.Token) *roles.Permissions {
	spec := token.GetSpec()
	return roles.Of(roles.Subject{
		Role: spec.GetRole(), Namespace: spec.GetNamespace(), Token: token.GetMetadata().GetName(), User: spec.GetUser(), Groups: spec.GetGroups(),
	}, snap.RoleByName, snap.RoleBindings(""))
}
