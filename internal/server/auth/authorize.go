package auth

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
)

var (
	readers  = []string{core.RoleViewer, core.RoleOperator, core.RoleAdmin}
	writers  = []string{core.RoleOperator, core.RoleAdmin}
	admins   = []string{core.RoleAdmin}
	everyone = []string{core.RoleViewer, core.RoleOperator, core.RoleAdmin, core.RoleNode, core.RoleServer}
)

// rolesOf maps the callers that a method can declare to roles that always exist, and to the kinds of certificates. Open
// methods need no role: they authenticate their callers themselves.
var rolesOf = map[v1.Method_Caller][]string{
	v1.Method_VIEWER:        readers,
	v1.Method_OPERATOR:      writers,
	v1.Method_ADMIN:         admins,
	v1.Method_ANY_IDENTITY:  everyone,
	v1.Method_NODE:          {core.RoleNode},
	v1.Method_SERVER:        {core.RoleServer},
	v1.Method_MEMBER_SERVER: {core.RoleServer},
}

// Permitted returns the roles that may call a method in all namespaces, of those that always exist and those of
// certificates. It is empty for methods without a declaration: no caller may call them.
func Permitted(method string) []string {
	m, _ := api.MethodOf(method)
	return rolesOf[m.Caller]
}

// open reports whether a method needs no identity.
func open(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsOpen()
}

// asksOnly reports whether a method needs no identity and its success proves none.
func asksOnly(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsOpen() && m.Reads
}

// forMembers reports whether servers may call a method only once the state lists them.
// Before that, they need a few methods to join the cluster.
func forMembers(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsForMembers()
}

// Authorize refuses a caller that may not call a method in any namespace. It needs no message.
func (a *Authenticator) Authorize(p core.Principal, method string) error {
	m, _ := api.MethodOf(method)
	switch {
	case p.IsUser() && m.IsForRoles():
		return a.permit(p, core.Need{Verbs: m.Verbs, Kind: m.Kind, Somewhere: true}, method)
	case p.IsUser() && m.Caller == v1.Method_ANY_IDENTITY, !p.IsUser() && slices.Contains(rolesOf[m.Caller], p.Role):
		return nil
	}
	return notByRole(p, m, method)
}

// notByRole refuses callers that no role can help.
func notByRole(p core.Principal, m api.Method, method string) error {
	what := callOf(method)
	switch {
	case len(rolesOf[m.Caller]) == 0:
		return core.NewForbidden("no caller may %s: the API declares none for it", what)
	case m.IsForRoles():
		return core.NewForbidden("%s has role %q by its certificate, which may not %s; it needs an API token, made with: cloudless token create --role %s",
			p.ID.Name(), p.Role, what, rolesOf[m.Caller][0])
	}
	return core.NewForbidden("%s has role %q, which may not %s: only a %s of the cluster may, with its certificate", p.ID.Name(), p.Role, what, rolesOf[m.Caller][0])
}

func callOf(method string) string { return "call " + strings.TrimPrefix(method, "/") }

// permit refuses a caller that lacks a permission. The text of a refusal is only prepared if there is one.
func (a *Authenticator) permit(p core.Principal, need core.Need, method string) error {
	if need.Met(p) {
		return nil
	}
	return core.Permit(a.snapshot(), p, need, callOf(method))
}

// AuthorizeRequest refuses a caller that may not call a method with this request, by the namespace that it is about.
func (a *Authenticator) AuthorizeRequest(p core.Principal, method string, request any) error {
	need, limited := needOf(method, request)
	if !limited || !p.IsUser() {
		return nil
	}
	return a.permit(p, need, method)
}

// authorizeEarly refuses callers before the message is read. Methods that do not exist and
// methods that need no identity are answered later.
func (a *Authenticator) authorizeEarly(p core.Principal, method string) error {
	if m, declared := api.MethodOf(method); !declared || m.IsOpen() {
		return nil
	}
	return a.Authorize(p, method)
}

// AuthorizeHTTP does the same for everything beside the API: the registry, the metrics, and the description of the API. It
// takes from a push of layers what the caller may not read. The result is the caller with what it may do now, and a check
// whether it still may.
func (a *Authenticator) AuthorizeHTTP(r *http.Request, p core.Principal) (core.Principal, func(core.Principal) error, error) {
	need, what := httpNeed(r)
	if !p.IsUser() {
		if need.Kind == "image" && (reads(r) || Copying(p, r)) {
			return p, nil, nil
		}
		return p, nil, core.NewForbidden("%s has role %q by its certificate, which may not %s; it needs an API token, made with: cloudless token create --role viewer",
			p.ID.Name(), p.Role, what)
	}
	still := func(p core.Principal) error { return core.Permit(a.snapshot(), p, need, what) }
	p, err := a.decide(r.Context(), p, still)
	if err == nil {
		dropForeignLayers(p, r)
	}
	return p, still, err
}

func httpNeed(r *http.Request) (need core.Need, what string) {
	switch {
	case r.URL.Path == "/metrics": // which tell of the whole cluster
		return core.Need{Verbs: []string{api.VerbGet}, Kind: "server"}, "read the metrics"
	case isRegistry(r.URL.Path):
		return registryNeed(r)
	}
	return core.Need{Verbs: []string{api.VerbGet}, Kind: api.AnyKind, Somewhere: true}, "read this"
}

func isRegistry(path string) bool { return path == "/v2" || strings.HasPrefix(path, "/v2/") }

func reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// registryNeed is what a request to the registry needs. A repository is in the namespace that its name begins with.
func registryNeed(r *http.Request) (need core.Need, what string) {
	repository := repositoryOf(r.URL.Path)
	need = core.Need{Kind: "image", Namespace: roles.NamespaceOfImage(repository)}
	switch {
	case reads(r) && strings.Trim(r.URL.Path, "/") == "v2": // whether it is a registry, asked by every client
		return core.Need{Verbs: []string{api.VerbGet, api.VerbCreate}, Kind: "image", Somewhere: true}, "pull images"
	case r.Method == http.MethodDelete:
		need.Verbs, what = []string{api.VerbDelete}, "delete images of "
	case !reads(r):
		need.Verbs, what = []string{api.VerbCreate}, "push images to "
	case r.Method == http.MethodHead, strings.Contains(r.URL.Path, "/blobs/uploads/"): // clients that push look at what exists
		need.Verbs, what = []string{api.VerbGet, api.VerbCreate}, "pull images from "
	default:
		need.Verbs, what = []string{api.VerbGet}, "pull images from "
	}
	if repository == "" {
		return need, what + "the registry"
	}
	return need, what + "repository " + repository
}

// repositoryOf returns the repository in the path of a request to the registry; empty if it has none.
func repositoryOf(path string) string {
	rest := strings.TrimPrefix(path, "/v2/")
	if strings.Contains(rest, "..") || strings.Contains(rest, "//") {
		return "" // it could become another one
	}
	for _, part := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/", "/_"} {
		if i := strings.Index(rest, part); i > 0 {
			return rest[:i]
		}
	}
	return ""
}

// dropForeignLayers removes the wish to take a layer from a repository that the caller may not read. The client then
// sends the layer itself.
func dropForeignLayers(p core.Principal, r *http.Request) {
	query := r.URL.Query()
	from := query.Get("from")
	if from == "" && query.Get("mount") == "" || p.Can(api.VerbGet, "image", roles.NamespaceOfImage(from)) && from != "" {
		return
	}
	query.Del("from")
	query.Del("mount")
	r.URL.RawQuery = query.Encode()
}
