package routes

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Ingress is what the nodes of the ingress must know, computed from a snapshot and kept up to date with its changes: a
// change of one endpoint computes one service again, however many routes there are. It is for one goroutine at a time; the
// sets that it returns never change.
type Ingress struct {
	settings *v1.Ingress
	cluster  selector
	routes   map[string]*route // by uid
	certs    map[string]*Certificate
	services map[string]*v1.IngressService
	// challenges are answered by every node that answers for a route.
	challenges map[string]*Challenge

	// leading, serving and securing are the uids of the routes that lead to a service, serve a bucket, or need a certificate,
	// by its path.
	leading, serving, securing map[string]map[string]bool
	// selectors count the routes with each selector.
	selectors map[string]int
	parsed    map[string]selector
	// classes are the sets of nodes that the same selectors choose.
	classes map[string]*Set
	// changed says that a message is another one since the sets were made: other ones than those of the services that have
	// changed.
	changed         bool
	changedServices map[string]bool
	// deltas are the differences between sets that were asked for since the last change.
	deltas map[[2]*Set]*v1.IngressDown
}

// route is a route with what nodes must know of it.
type route struct {
	message  *v1.IngressRoute
	selector string
	// services, buckets and certificate are the paths of what it names, whether that exists or not.
	services    []string
	buckets     []string
	certificate string
}

// Certificate is a certificate whose key is still sealed.
type Certificate struct {
	// Message lacks the key.
	Message *v1.IngressCertificate
	Sealed  []byte
}

// Challenge is a challenge whose certificate's key is still sealed, if it has a certificate.
type Challenge struct {
	// Message lacks the key.
	Message *v1.IngressChallenge
	Sealed  []byte
}

// NewIngress computes what nodes must know.
func NewIngress(snap *state.Snapshot) *Ingress {
	i := &Ingress{
		routes: map[string]*route{}, certs: map[string]*Certificate{}, services: map[string]*v1.IngressService{}, challenges: map[string]*Challenge{},
		leading: map[string]map[string]bool{}, serving: map[string]map[string]bool{}, securing: map[string]map[string]bool{}, selectors: map[string]int{}, parsed: map[string]selector{},
		changedServices: map[string]bool{}, classes: map[string]*Set{}, deltas: map[[2]*Set]*v1.IngressDown{},
	}
	i.setCluster(snap)
	for r := range snap.Routes("", "") {
		i.setRoute(snap, r.GetMetadata().GetUid())
	}
	for c := range snap.CertificateChallenges() {
		i.setChallenge(snap, c.GetMetadata().GetUid())
	}
	i.changed, i.changedServices = false, map[string]bool{}
	return i
}

// Matters reports whether a change can concern what nodes must know at all. It is cheap.
func Matters(c state.Change) bool {
	switch c.Kind {
	case state.KindRoute, state.KindCertificate, state.KindCertificateKey, state.KindCertificateChallenge:
		return true
	case state.KindBucket:
		return c.Old == nil || c.New == nil
	case state.KindCluster:
		before, _ := c.Old.(*v1.Cluster)
		after, _ := c.New.(*v1.Cluster)
		return !proto.Equal(before.GetSpec().GetIngress(), after.GetSpec().GetIngress())
	case state.KindNode:
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		return !maps.Equal(spec.NodeLabels(before), spec.NodeLabels(after)) || services.Matters(c)
	}
	return sleeps(c) || services.Matters(c)
}

// sleeps reports whether a service may have been scaled to zero or woken by a change.
func sleeps(c state.Change) bool {
	if c.Kind != state.KindWorkload {
		return false
	}
	before, _ := c.Old.(*v1.Workload)
	after, _ := c.New.(*v1.Workload)
	return mayWake(before) != mayWake(after) || spec.Asleep(before) != spec.Asleep(after)
}

// Update follows changes, which the snapshot includes. It may include more. It reports whether any set may differ.
func (i *Ingress) Update(snap *state.Snapshot, changes []state.Change) bool {
	touched := newTouched()
	for uid := range services.Affected(snap, changes) {
		i.touchService(snap, touched, uid)
	}
	for _, c := range changes {
		switch c.Kind {
		case state.KindCluster:
			i.setCluster(snap)
		case state.KindRoute:
			touched.routes[uidOf(c)] = true
		case state.KindCertificateKey: // it may make its certificate usable
			touched.certs[uidOf(c)] = true
			if owner := snap.Certificate(uidOf(c)); owner != nil {
				i.touchNamed(touched, i.securing, state.Change{New: owner})
			}
		case state.KindCertificateChallenge:
			touched.challenges[uidOf(c)] = true
		case state.KindCertificate:
			touched.certs[uidOf(c)] = true
			i.touchNamed(touched, i.securing, c)
		case state.KindService:
			i.touchNamed(touched, i.leading, c)
		case state.KindBucket:
			i.touchNamed(touched, i.serving, c)
		case state.KindWorkload:
			if sleeps(c) {
				i.touchWorkload(snap, touched, c)
			}
		}
	}
	return i.apply(snap, touched)
}

// touched are the uids of what has to be computed again.
type touched struct{ routes, certs, services, challenges map[string]bool }

func newTouched() *touched {
	return &touched{routes: map[string]bool{}, certs: map[string]bool{}, services: map[string]bool{}, challenges: map[string]bool{}}
}

func uidOf(c state.Change) string {
	if c.New != nil {
		return c.New.GetMetadata().GetUid()
	}
	return c.Old.GetMetadata().GetUid()
}

// touchNamed touches the routes that name an object, because its uid may be another one now.
func (i *Ingress) touchNamed(t *touched, naming map[string]map[string]bool, c state.Change) {
	for _, o := range []state.Object{c.Old, c.New} {
		if o == nil {
			continue
		}
		for uid := range naming[pathOf(o.GetMetadata())] {
			t.routes[uid] = true
		}
	}
}

func (i *Ingress) touchService(snap *state.Snapshot, t *touched, uid string) {
	s := snap.Service(uid)
	if s == nil && i.services[uid] == nil {
		return
	}
	if s != nil && len(i.leading[pathOf(s.GetMetadata())]) == 0 && i.services[uid] == nil {
		return // no route leads to it
	}
	t.services[uid] = true
}

// touchWorkload touches the services that a workload is behind.
func (i *Ingress) touchWorkload(snap *state.Snapshot, t *touched, c state.Change) {
	for _, o := range []state.Object{c.Old, c.New} {
		w, ok := o.(*v1.Workload)
		if !ok {
			continue
		}
		namespace := w.GetMetadata().GetNamespace()
		if s := snap.ServiceByName(namespace, w.GetMetadata().GetName()); s != nil {
			i.touchService(snap, t, s.GetMetadata().GetUid())
		}
		for s := range snap.SelectingServices(namespace) {
			if services.Chooses(s, w) {
				i.touchService(snap, t, s.GetMetadata().GetUid())
			}
		}
	}
}

// apply computes again what was touched, and makes new sets where something differs.
func (i *Ingress) apply(snap *state.Snapshot, t *touched) bool {
	for uid := range t.routes {
		i.setRoute(snap, uid)
	}
	for uid := range t.services {
		i.setService(snap, uid)
	}
	for uid := range t.certs {
		i.setCertificate(snap, uid)
	}
	for uid := range t.challenges {
		i.setChallenge(snap, uid)
	}
	if !i.changed && len(i.changedServices) == 0 {
		return false
	}
	clear(i.deltas)
	for class, old := range i.classes {
		switch {
		case !i.exists(class):
			delete(i.classes, class)
		case i.changed:
			i.classes[class] = i.renew(class, old)
		default:
			i.classes[class] = i.withServices(old)
		}
	}
	i.changed, i.changedServices = false, map[string]bool{}
	return true
}

func (i *Ingress) setCluster(snap *state.Snapshot) {
	settings := snap.Cluster().GetSpec().GetIngress()
	if settings == nil {
		settings = &v1.Ingress{}
	}
	if i.settings == nil || !proto.Equal(i.settings, settings) {
		i.settings, i.cluster, i.changed = settings, parse(settings.GetNodes()), true
	}
}

// setRoute computes a route again, or drops it, and what it names.
func (i *Ingress) setRoute(snap *state.Snapshot, uid string) {
	old, fresh := i.routes[uid], newRoute(snap, snap.Route(uid))
	i.changed = i.changed || old != nil || fresh != nil
	if old != nil {
		i.unlink(uid, old)
		delete(i.routes, uid)
	}
	if fresh != nil {
		if old != nil && proto.Equal(old.message, fresh.message) {
			fresh.message = old.message // nodes know it
		}
		i.link(uid, fresh)
		i.routes[uid] = fresh
	}
	for _, one := range []*route{old, fresh} {
		if one == nil {
			continue
		}
		for _, service := range one.message.GetServiceUids() {
			i.setService(snap, service)
		}
		i.setCertificate(snap, one.message.GetCertificateUid())
	}
}

func (i *Ingress) link(uid string, r *route) {
	for _, service := range r.services {
		add(i.leading, service, uid)
	}
	for _, bucket := range r.buckets {
		add(i.serving, bucket, uid)
	}
	if r.certificate != "" {
		add(i.securing, r.certificate, uid)
	}
	i.selectors[r.selector]++
	if i.selectors[r.selector] == 1 {
		i.parsed[r.selector] = parse(r.selector)
	}
}

func (i *Ingress) unlink(uid string, r *route) {
	for _, service := range r.services {
		remove(i.leading, service, uid)
	}
	for _, bucket := range r.buckets {
		remove(i.serving, bucket, uid)
	}
	remove(i.securing, r.certificate, uid)
	if i.selectors[r.selector]--; i.selectors[r.selector] == 0 {
		delete(i.selectors, r.selector)
		delete(i.parsed, r.selector)
	}
}

func add(to map[string]map[string]bool, key, uid string) {
	if to[key] == nil {
		to[key] = map[string]bool{}
	}
	to[key][uid] = true
}

func remove(from map[string]map[string]bool, key, uid string) {
	delete(from[key], uid)
	if len(from[key]) == 0 {
		delete(from, key)
	}
}

// setService computes a service again. One that no route leads to is dropped.
func (i *Ingress) setService(snap *state.Snapshot, uid string) {
	if uid == "" {
		return
	}
	s := snap.Service(uid)
	if s == nil || len(i.leading[pathOf(s.GetMetadata())]) == 0 {
		if i.services[uid] != nil {
			i.changedServices[uid] = true
		}
		delete(i.services, uid)
		return
	}
	if fresh := newService(snap, s); !proto.Equal(i.services[uid], fresh) {
		i.services[uid], i.changedServices[uid] = fresh, true
	}
}

func (i *Ingress) setCertificate(snap *state.Snapshot, uid string) {
	if uid == "" {
		return
	}
	c := snap.Certificate(uid)
	if c == nil || !usable(snap, c) || len(i.securing[pathOf(c.GetMetadata())]) == 0 {
		i.changed = i.changed || i.certs[uid] != nil
		delete(i.certs, uid)
		return
	}
	fresh := &Certificate{
		Message: &v1.IngressCertificate{Uid: uid, Chain: c.GetSpec().GetChain()},
		Sealed:  snap.CertificateKey(uid).GetSealed(),
	}
	if old := i.certs[uid]; old == nil || old.Message.GetChain() != fresh.Message.GetChain() || !slices.Equal(old.Sealed, fresh.Sealed) {
		i.certs[uid], i.changed = fresh, true
	}
}

func (i *Ingress) setChallenge(snap *state.Snapshot, uid string) {
	c := snap.CertificateChallenge(uid)
	i.changed = true
	if c == nil {
		delete(i.challenges, uid)
		return
	}
	i.challenges[uid] = newChallenge(c)
}

func newChallenge(c *statev1.CertificateChallenge) *Challenge {
	message := &v1.IngressChallenge{Uid: c.GetMetadata().GetUid(), Host: c.GetHost(), Token: c.GetToken(), KeyAuthorization: c.GetKeyAuthorization()}
	if c.GetChain() != "" {
		message.Certificate = &v1.IngressCertificate{Uid: c.GetMetadata().GetUid(), Chain: c.GetChain()}
	}
	return &Challenge{Message: message, Sealed: c.GetSealedKey()}
}

func path(namespace, name string) string { return namespace + "/" + name }

func pathOf(m *v1.Metadata) string { return path(m.GetNamespace(), m.GetName()) }

// selector chooses nodes. One that cannot be read chooses none: it was refused when the route was written.
type selector struct {
	spec.Selector
	valid bool
}

func parse(text string) selector {
	s, err := spec.ParseSelector(text)
	return selector{s, err == nil}
}

func (s selector) matches(labels map[string]string) bool { return s.valid && s.Matches(labels) }

// Answering yields the nodes that should answer for a route, by name.
func Answering(snap *state.Snapshot, r *v1.Route) iter.Seq[*v1.Node] { return answering(snap, r) }

// exists reports whether there are routes for all selectors of a class.
func (i *Ingress) exists(class string) bool {
	for text := range strings.SplitSeq(class, "\n") {
		if i.selectors[text[1:]] == 0 {
			return false
		}
	}
	return true
}

// classOf names the selectors that choose a node; empty if it is no node of the ingress. Nodes of the same class need the
// same set.
func (i *Ingress) classOf(labels map[string]string) string {
	if !i.cluster.matches(labels) {
		return ""
	}
	var chosen []string
	for text, s := range i.parsed {
		if s.matches(labels) {
			chosen = append(chosen, "/"+text)
		}
	}
	slices.Sort(chosen)
	return strings.Join(chosen, "\n")
}
