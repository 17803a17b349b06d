package server

import (
	"context"
	"fmt"
	"iter"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// routeService is the RouteService.
//
// The hashes of passwords are stored with a route, because nodes need them, and are in no answer. What a route claims, a host
// or a port, no other one may have: see checkRoutes.
type routeService struct {
	v1.UnsafeRouteServiceServer
	*collection[*v1.Route]
}

func newRoutes(s *Server) *collection[*v1.Route] {
	c := newCollection[*v1.Route](s, state.KindRoute)
	c.normalize, c.summary, c.public = spec.NormalizeRoute, routeSummary, spec.WithoutPasswords
	c.present = func(snap *state.Snapshot, r *v1.Route) *v1.Route { return routes.Present(snap, r, s.live()) }
	c.prepare = func(ctx context.Context, given *v1.Route, p *preparation) (builder[*v1.Route], error) {
		if err := s.mayServe(ctx, given); err != nil {
			return nil, err
		}
		plain, err := c.preparePlain(ctx, given, p)
		return &routeBuilder{builder: plain, collection: c}, err
	}
	c.followed.touched = routes.StatusAffected
	return c
}

// mayServe refuses a caller who would show everybody what they may not read themselves.
func (s *Server) mayServe(ctx context.Context, r *v1.Route) error {
	for _, b := range r.GetSpec().GetBackends() {
		if b.GetBucket() != nil {
			namespace := orDefault(r.GetMetadata().GetNamespace())
			return s.Require(ctx, api.VerbGet, "object", namespace, "serve bucket "+b.GetBucket().GetName()+" as a web site")
		}
	}
	return nil
}

// live is what nodes have reported; nil if nobody collects it.
func (s *Server) live() routes.Live {
	if s.traffic == nil {
		return nil
	}
	return s.traffic
}

func (s *routeService) CreateRoute(ctx context.Context, request *v1.CreateRouteRequest) (*v1.Route, error) {
	return s.create(ctx, request, request.GetRoute())
}

func (s *routeService) ApplyRoute(ctx context.Context, request *v1.ApplyRouteRequest) (*v1.ApplyRouteResponse, error) {
	made, result, err := s.apply(ctx, request, request.GetRoute())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyRouteResponse{Route: made, Result: result}, nil
}

func (s *routeService) UpdateRoute(ctx context.Context, request *v1.UpdateRouteRequest) (*v1.Route, error) {
	return s.update(ctx, request.GetRoute())
}

func (s *routeService) DeleteRoute(ctx context.Context, request *v1.DeleteRouteRequest) (*v1.Route, error) {
	return s.delete(ctx, orDefault(request.GetNamespace()), request.GetName(), request.GetVersion())
}

func (s *routeService) GetRoute(ctx context.Context, request *v1.GetRouteRequest) (*v1.Route, error) {
	return s.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *routeService) ListRoutes(ctx context.Context, request *v1.ListRoutesRequest) (*v1.ListRoutesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Route]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListRoutesResponse{Items: items, Next: next}, nil
}

func (s *routeService) WatchRoutes(request *v1.WatchRoutesRequest, stream grpc.ServerStreamingServer[v1.RouteChange]) error {
	return s.watch(stream.Context(), selection[*v1.Route]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	}, func(change string, o *v1.Route) error {
		return stream.Send(&v1.RouteChange{Change: change, Route: o})
	})
}

// routeSummary is what an event says of a written route, such as "shop.example.org to api:8080, TLS auto".
func routeSummary(r *v1.Route) string {
	var to []string
	for _, b := range r.GetSpec().GetBackends() {
		text := spec.BackendTitle(b)
		if len(r.GetSpec().GetBackends()) > 1 {
			text += fmt.Sprintf("=%d", b.GetWeight())
		}
		to = append(to, text)
	}
	text := spec.RouteTitle(r.GetSpec()) + " to " + strings.Join(to, ", ")
	if mode := spec.RouteTLS(r.GetSpec()); mode != spec.TLSOff {
		text += ", TLS " + mode
	}
	return text
}

// routeBuilder writes a route, and keeps the stored password of a user for whom none is given.
type routeBuilder struct {
	builder[*v1.Route]
	collection *collection[*v1.Route]
}

// with is the builder of the route with the passwords that a stored one has. The request's own object stays as it is, because
// the next attempt may find another stored route.
func (b *routeBuilder) with(old *v1.Route) (builder[*v1.Route], error) {
	whole := proto.CloneOf(b.wanted())
	if i := spec.KeepPasswords(whole.GetSpec(), old.GetSpec()); i >= 0 {
		return nil, &spec.Error{Violations: []spec.Violation{{
			Field: fmt.Sprintf("spec.http.users[%d].passwordHash", i),
			Message: fmt.Sprintf("is missing, and the route has no user %s whose password could stay: give a bcrypt hash, as htpasswd -nB makes it, or use cloudless route add --user %s",
				whole.GetSpec().GetHttp().GetUsers()[i].GetName(), whole.GetSpec().GetHttp().GetUsers()[i].GetName()),
		}}}
	}
	return &plainBuilder[*v1.Route]{collection: b.collection, object: whole}, nil
}

func (b *routeBuilder) create(ctx context.Context, tx *transaction) (*v1.Route, error) {
	whole, err := b.with(nil)
	if err != nil {
		return nil, err
	}
	return whole.create(ctx, tx)
}

func (b *routeBuilder) update(ctx context.Context, tx *transaction, old *v1.Route) (*v1.Route, error) {
	whole, err := b.with(old)
	if err != nil {
		return nil, err
	}
	return whole.update(ctx, tx, old)
}

func (b *routeBuilder) describe(tx *transaction, old, now *v1.Route, change *v1.PlanChange) {
	namespace := now.GetMetadata().GetNamespace()
	change.Warnings = routes.Unmet(now, func(name string) *v1.Service { return tx.service(namespace, name) }, func(name string) bool {
		w := tx.workload(namespace, name)
		return w != nil && w.GetMetadata().GetDeleteTime() == nil && spec.HasService(w.GetSpec())
	}, func(name string) bool { return tx.hasBucket(namespace, name) })
	if change.GetAction() != spec.ActionUnchanged {
		before, after := shownPasswords(old, now)
		change.Fields = fieldChanges(spec.DiffObject(before, after))
	}
}

// shownPasswords are two versions of a route for people, with words in the place of passwords.
func shownPasswords(old, now *v1.Route) (before, after *v1.Route) {
	before, after = spec.WithoutPasswords(old), spec.WithoutPasswords(now)
	had := map[string]string{}
	for _, u := range old.GetSpec().GetHttp().GetUsers() {
		had[u.GetName()] = u.GetPasswordHash()
	}
	for i, u := range now.GetSpec().GetHttp().GetUsers() {
		if had[u.GetName()] != u.GetPasswordHash() {
			after.GetSpec().GetHttp().GetUsers()[i].PasswordHash = "(new)"
		}
	}
	return before, after
}

// service is the service with a name as the transaction leaves it.
func (tx *transaction) service(namespace, name string) *v1.Service {
	for s := range state.Puts[*v1.Service](tx.batch) {
		if s.GetMetadata().GetName() == name && s.GetMetadata().GetNamespace() == namespace {
			return s
		}
	}
	if s := tx.base.ServiceByName(namespace, name); s != nil && !tx.batch.Deletes(state.KindService, s.GetMetadata().GetUid()) {
		return s
	}
	return nil
}

// hasBucket reports whether there is a bucket with a name as the transaction leaves it. None deletes buckets and writes routes.
func (tx *transaction) hasBucket(namespace, name string) bool {
	for b := range state.Puts[*v1.Bucket](tx.batch) {
		if b.GetMetadata().GetName() == name && b.GetMetadata().GetNamespace() == namespace {
			return true
		}
	}
	return tx.base.BucketByName(namespace, name) != nil
}

// routes yields all routes as the transaction leaves them.
func (tx *transaction) routes() iter.Seq[*v1.Route] {
	return func(yield func(*v1.Route) bool) {
		written := map[string]bool{}
		for r := range state.Puts[*v1.Route](tx.batch) {
			if written[r.GetMetadata().GetUid()] = true; !yield(r) {
				return
			}
		}
		for r := range tx.base.Routes("", "") {
			uid := r.GetMetadata().GetUid()
			if !written[uid] && !tx.batch.Deletes(state.KindRoute, uid) && !yield(r) {
				return
			}
		}
	}
}

// checkRoutes refuses a transaction after which two routes answer for the same, a host has routes in two namespaces, or a
// route and a workload or the cluster itself need the same port. What is there from before stays.
//
// It relies on all routes and all published ports. Two transactions that were built from the same snapshot may claim the same:
// the marks let the state refuse the second one, and it is built again.
func (tx *transaction) checkRoutes() error {
	claims, publishes := false, false
	for r := range state.Puts[*v1.Route](tx.batch) {
		if routes.ClaimsAnew(tx.base.Route(r.GetMetadata().GetUid()), r) {
			claims = true
			if err := tx.checkClaim(r); err != nil {
				return err
			}
		}
	}
	for w := range tx.batch.Workloads() {
		if publishesAnew(tx.base.Workload(w.GetMetadata().GetUid()), w) {
			publishes = true
			if err := tx.checkFree(w); err != nil {
				return err
			}
		}
	}
	if claims {
		tx.batch.CheckFirst(state.KindMark, state.MarkPublished, tx.base.MarkVersion(state.MarkPublished))
	}
	if claims || publishes {
		tx.batch.CheckFirst(state.KindMark, state.MarkRoutes, tx.base.MarkVersion(state.MarkRoutes))
	}
	return nil
}

// checkClaim refuses a route whose host or port is not free.
func (tx *transaction) checkClaim(r *v1.Route) error {
	settings := tx.base.Cluster().GetSpec()
	field, words := routes.Reserved(settings, r.GetSpec(), func(port int32) bool { return isAPIPort(tx.base, port) })
	if words == "" {
		field, words = unproven(tx.base, r)
	}
	for other := range tx.routes() {
		if words != "" {
			break
		}
		field, words = routes.Conflict(r, other)
		words = tx.hide("route", other, words)
	}
	for w := range tx.workloads() {
		if words != "" {
			break
		}
		if w.GetMetadata().GetDeleteTime() == nil {
			field, words = routes.Published(settings, r, w)
			words = tx.hide("workload", w, words)
		}
	}
	if words == "" {
		return nil
	}
	return &spec.Error{Violations: []spec.Violation{{Field: field, Message: words}}}
}

// hide replaces words about an object in a namespace that the caller may not see. The caller learns that something is taken,
// and not by what.
func (tx *transaction) hide(kind string, other state.Object, words string) string {
	if words == "" || tx.caller.Sees(kind, other.GetMetadata().GetNamespace()) {
		return words
	}
	return "is taken by another namespace; choose another"
}

// checkFree refuses a workload that publishes the port of a route.
func (tx *transaction) checkFree(w *v1.Workload) error {
	for r := range tx.routes() {
		if i, words := routes.TakenBy(tx.base.Cluster().GetSpec(), w, r); words != "" {
			words = tx.hide("route", r, words)
			return &spec.Error{Violations: []spec.Violation{{Field: fmt.Sprintf("spec.ports[%d].publish", i), Message: words}}}
		}
	}
	return nil
}

// unproven says why a route could never have its certificate.
func unproven(snap *state.Snapshot, r *v1.Route) (field, words string) {
	s, namespace := r.GetSpec(), r.GetMetadata().GetNamespace()
	switch spec.RouteTLS(s) {
	case spec.TLSAuto:
		if strings.HasPrefix(s.GetHost(), "*.") && snap.Cluster().GetSpec().GetAcme().GetDns().GetProvider() == "" {
			return "spec.tls.mode", fmt.Sprintf("auto for %s needs a check by DNS, and the cluster has no provider of DNS: set one with: cloudless cluster config set acme.dns.provider=NAME; or use cluster or own",
				s.GetHost())
		}
	case spec.TLSOwn:
		name := s.GetTls().GetCertificate()
		switch c := snap.CertificateByName(namespace, name); {
		case c == nil:
			return "spec.tls.certificate", fmt.Sprintf("names certificate %s, which namespace %s does not have; add it first with: %s",
				name, namespace, spec.Hint(namespace, "cloudless certificate add "+name+" --cert FILE --key FILE"))
		case !routes.Secures(c, r):
			return "spec.tls.certificate", fmt.Sprintf("names certificate %s, which is for %s and not for %s; add another one, or change the host",
				name, strings.Join(c.GetSpec().GetHosts(), ", "), s.GetHost())
		}
	}
	return "", ""
}

// isAPIPort reports whether a server has its API at a port.
func isAPIPort(snap *state.Snapshot, port int32) bool {
	for server := range snap.Servers("") {
		if _, taken, err := net.SplitHostPort(server.GetSpec().GetAddress()); err == nil && taken == fmt.Sprint(port) {
			return true
		}
	}
	return false
}

// ingressFits refuses ports of the ingress that something else has already.
func ingressFits(snap *state.Snapshot, before, after *v1.ClusterSpec, refuse func(field, format string, args ...any)) {
	http, https := spec.IngressPorts(after)
	wasHTTP, wasHTTPS := spec.IngressPorts(before)
	for _, p := range []struct {
		field   string
		was, is int32
	}{{"ingress.httpPort", wasHTTP, http}, {"ingress.httpsPort", wasHTTPS, https}} {
		if p.was == p.is {
			continue
		}
		if isAPIPort(snap, p.is) {
			refuse(p.field, "%d is the port of the cluster's API; choose another", p.is)
			continue
		}
		for r := range snap.Routes("", "") {
			if r.GetSpec().GetTcp() == p.is {
				refuse(p.field, "%d is the port of route %s; choose another, or remove that route first", p.is, state.Path(r))
				break
			}
		}
	}
}
