package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/pressure"
	"github.com/cloudless/cloudless/internal/agent/storage"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// status is the node's current status: the machine, and what the agent adds to it.
func (a *Agent) status() (*v1.NodeStatus, error) {
	status, err := a.machine.Status()
	if err != nil {
		return nil, err
	}
	status.Conditions = append([]*v1.Condition{a.readiness.condition()}, status.GetConditions()...)
	a.reachable.judge(a.network, status.Conditions)
	a.evictions.judge(status.Conditions)
	if clock := a.clock.condition(); clock != nil {
		status.Conditions = append(status.Conditions, clock)
	}
	if departs := a.departure.condition(); departs != nil {
		status.Conditions = append(status.Conditions, departs)
	}
	status.Mesh = a.meshState.status()
	for name, d := range a.drivers {
		can := d.Capabilities()
		status.Drivers = append(status.Drivers, &v1.DriverInfo{
			Name: name, Version: can.Version, Missing: can.Missing, Sandboxes: can.Sandboxes, UserNamespaces: can.UserNamespaces,
		})
	}
	slices.SortFunc(status.Drivers, func(x, y *v1.DriverInfo) int { return cmp.Compare(x.GetName(), y.GetName()) })
	return status, nil
}

// sameButUsage reports whether only measurements differ.
func sameButUsage(a, b *v1.NodeStatus) bool {
	return proto.Equal(withoutUsage(a), withoutUsage(b))
}

func withoutUsage(status *v1.NodeStatus) *v1.NodeStatus {
	return &v1.NodeStatus{
		Conditions: status.GetConditions(),
		Capacity:   status.GetCapacity(),
		Interfaces: status.GetInterfaces(),
		Info:       status.GetInfo(),
		Drivers:    status.GetDrivers(),
		Gpus:       status.GetGpus(),
		Mesh:       status.GetMesh(),
		Reserved:   status.GetReserved(),
	}
}

const (
	// evictionGrace is the longest grace period of an evicted replica: the machine has no time to lose.
	evictionGrace = 2 * time.Second
	// evictionPatience is how long an eviction may take before the next one is considered.
	evictionPatience = 10 * time.Second
	// evictionHold is how long a node has MemoryPressure after an eviction. Otherwise the replacement could come back at
	// once and need the same memory again.
	evictionHold = time.Minute
	// evictionPause is after how long an evicted replica starts again if no server has replaced it.
	evictionPause = 5 * time.Minute
)

// evictions remembers the last eviction.
type evictions struct {
	mu   sync.Mutex
	last time.Time
}

func (e *evictions) note() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = time.Now()
}

// judge gives a node from which a replica was just evicted the condition MemoryPressure.
func (e *evictions) judge(conditions []*v1.Condition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last.IsZero() || time.Since(e.last) > evictionHold {
		return
	}
	for i, c := range conditions {
		if c.GetType() == "MemoryPressure" && !c.GetStatus() {
			conditions[i] = &v1.Condition{
				Type: c.GetType(), Status: true, ChangeTime: timestamppb.New(e.last),
				Reason: fmt.Sprintf("A replica was evicted for lack of memory less than %s ago.", spec.FormatDuration(evictionHold)),
			}
		}
	}
}

// watchMemory evicts replicas while memory is short, until ctx ends.
func (a *Agent) watchMemory(ctx context.Context) {
	var logged logLimiter
	pressure.Watch(ctx, pressure.Options{
		Read: a.readMemory, Replicas: a.memoryUsers, Evict: a.evict,
		Failed: func(err error) {
			if logged.shouldLog(err.Error(), time.Now()) {
				a.log.Warn("cannot measure memory; nothing is evicted", "error", err)
			}
		},
	})
}

// readMemory reads the memory of the machine, and of all tasks.
func (a *Agent) readMemory() (r pressure.Reading, err error) {
	if r.Machine, r.Stalled, err = a.machine.Memory(); err != nil {
		return r, err
	}
	for _, d := range a.drivers {
		pooler, ok := d.(driver.Pooler)
		if !ok {
			continue
		}
		pool, err := pooler.Pool()
		if err != nil {
			return r, err
		}
		if pool.Limit > 0 {
			r.Pool = pressure.Room{Total: pool.Limit, Available: pool.Limit - pool.Used}
			r.Stalled = max(r.Stalled, pool.Stalled)
		}
	}
	return r, nil
}

// reserveMemory keeps so much memory from all tasks together. Empty text changes nothing.
func (a *Agent) reserveMemory(text string) error {
	if text == "" {
		return nil
	}
	reserved, err := spec.ParseBytes(text)
	if err != nil {
		return err
	}
	room, _, err := a.machine.Memory()
	for _, d := range a.drivers {
		if pooler, ok := d.(driver.Pooler); ok && err == nil {
			err = pooler.LimitPool(max(room.Total-reserved, mebibyte))
		}
	}
	return err
}

// mebibyte is the least that containers get, whatever is reserved.
const mebibyte = 1 << 20

// memoryUsers measures the running replicas.
func (a *Agent) memoryUsers(ctx context.Context) (users []pressure.Replica) {
	for _, t := range a.runningTasks() {
		if stats, err := t.meter.Stats(ctx, t.id); err == nil {
			w := t.assignment.GetRevision().GetSpec().GetWorkload()
			users = append(users, pressure.Replica{
				UID: t.replica.GetMetadata().GetUid(), Priority: spec.PriorityOf(w), Used: int64(stats.MemoryBytes),
				Request: memoryRequest(t.assignment), Alone: max(w.GetReplicas(), w.GetAutoscale().GetMax()) <= 1,
			})
		}
	}
	return users
}

// evict stops a replica, and returns when its memory is free.
func (a *Agent) evict(ctx context.Context, victim pressure.Replica, reason string) {
	r := a.replica(victim.UID)
	if r == nil {
		return
	}
	a.log.Warn("evicting a replica for lack of memory", "replica", victim.UID, "reason", reason)
	a.evictions.note()
	a.noteChange() // servers must know of the pressure before they replace the replica
	a.evictNow(ctx, r, reason)
}

// evictNow stops a replica, and returns when nothing of it runs any more, or after a while.
func (a *Agent) evictNow(ctx context.Context, r *replica, reason string) {
	a.metrics.Evicted()
	a.reportEvent("warning", "Evicted", r.uid, strings.TrimPrefix(reason, "Evicted: ")) // the event has the word already
	r.evict(reason)
	select {
	case <-r.end():
	case <-ctx.Done():
	case <-time.After(evictionPatience):
	}
}

// watchDisk removes unused images and evicts replicas before the disk is full, until ctx ends.
func (a *Agent) watchDisk(ctx context.Context) {
	var logged logLimiter
	storage.Watch(ctx, storage.Options{
		Read: a.machine.Disk, HighPercent: a.imageHighPercent, Images: a.storedImages, Remove: a.removeImage,
		Replicas: a.diskUsers,
		Evict: func(ctx context.Context, uid, reason string) {
			if r := a.replica(uid); r != nil {
				a.log.Warn("evicting a replica for the space on the disk", "replica", uid, "reason", reason)
				a.evictNow(ctx, r, reason)
			}
		},
		Failed: func(err error) {
			if logged.shouldLog(err.Error(), time.Now()) {
				a.log.Warn("cannot keep the disk from filling up", "error", err)
			}
		},
	})
}

func (a *Agent) imageHighPercent() int {
	return cmp.Or(int(a.disk.Load().GetImageHighPercent()), storage.DefaultHighPercent)
}

// storedImages lists the images of all drivers.
func (a *Agent) storedImages(ctx context.Context) (all []storage.Image, err error) {
	for _, d := range a.drivers {
		store, ok := d.(driver.ImageStore)
		if !ok {
			continue
		}
		images, err := store.Images(ctx)
		if err != nil {
			return nil, err
		}
		for _, one := range images {
			all = append(all, storage.Image{Driver: d.Name(), Ref: one.Ref, Bytes: one.Bytes, InUse: one.InUse, LastUse: one.LastUse})
		}
	}
	return all, nil
}

func (a *Agent) removeImage(ctx context.Context, one storage.Image) error {
	store, ok := a.drivers[one.Driver].(driver.ImageStore)
	if !ok {
		return nil
	}
	if err := store.RemoveImage(ctx, one.Ref); err != nil {
		return err
	}
	a.log.Info("removed an unused image, because the disk was filling up", "image", one.Ref, "bytes", one.Bytes)
	a.metrics.ImageRemoved(one.Bytes)
	return nil
}

// diskUsers measures what the running replicas have written to their own layers.
func (a *Agent) diskUsers(ctx context.Context) (users []storage.Replica) {
	for _, t := range a.runningTasks() {
		weigher, ok := t.meter.(driver.Weigher)
		if !ok {
			continue
		}
		written, err := weigher.DiskUsage(ctx, t.id)
		if err != nil {
			continue // it has just ended
		}
		w := t.assignment.GetRevision().GetSpec().GetWorkload()
		request, _ := spec.ParseBytes(cmp.Or(w.GetResources().GetRequests().GetDisk(), "0"))
		users = append(users, storage.Replica{
			UID: t.replica.GetMetadata().GetUid(), Priority: spec.PriorityOf(w), Used: written, Request: request,
			Limit: a.diskLimit(w, request), Alone: max(w.GetReplicas(), w.GetAutoscale().GetMax()) <= 1,
		})
	}
	return users
}

// diskLimit is what a replica may write to its own layer: its own limit, or else that of the cluster, or what it requests
// if that is more.
func (a *Agent) diskLimit(w *v1.WorkloadSpec, request int64) int64 {
	if own, err := spec.ParseBytes(w.GetResources().GetLimits().GetDisk()); err == nil && own > 0 {
		return own
	}
	return max(request, cmp.Or(a.disk.Load().GetMaxWritableLayer(), storage.DefaultLimit))
}

// Trust keeps the node's certificate, and which authorities the node trusts.
type Trust interface {
	// Set replaces the authorities to trust, in DER form, the one that signs first, and keeps them for the next start. If
	// renew is set, the node's certificate will soon be from that one.
	Set(authorities [][]byte, renew bool) error
	// Report is what the node trusts, and which authority its certificate is from.
	Report() *v1.TrustUp
	// Changed has a value when that has changed.
	Changed() <-chan struct{}
}

// setTrust does what a server says about authorities, and reports what the node trusts then.
func (a *Agent) setTrust(down *v1.TrustDown) {
	if a.trust == nil {
		return
	}
	if err := a.trust.Set(down.GetCertificates(), down.GetRenew()); err != nil {
		a.log.Error("this node does not follow the rotation of the cluster's authority", "error", err)
	}
	select {
	case a.trustDue <- struct{}{}:
	default:
	}
}

// trustChanges has a value when a server must hear what the node trusts now.
func (a *Agent) trustChanges() <-chan struct{} {
	if a.trust == nil {
		return nil
	}
	return a.trust.Changed()
}
