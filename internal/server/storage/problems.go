package storage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// election is how long there may be no leader before that is a problem.
	election = 5 * time.Second
	// healthPatience is how long the leader of the names may take to say how its members are.
	healthPatience = time.Second
)

// Group is the group of servers that keeps the names of objects.
type Group interface {
	Leader() string
	Leaderless() time.Duration
	Health(ctx context.Context) ([]*v1.NamesMember, error)
}

// Problems says what is wrong with the group that keeps the names of objects, and what to do about it. servers are those of
// the cluster; what is wrong with one in general is said elsewhere.
func (s *Storage) Problems(ctx context.Context, servers []*v1.ServerStatus) []string {
	return problems(ctx, s.o.Names, servers)
}

func problems(ctx context.Context, group Group, servers []*v1.ServerStatus) (all []string) {
	leader := group.Leader()
	if leader == "" {
		if since := group.Leaderless(); since > election {
			all = append(all, fmt.Sprintf("no server has led the names of objects for %s, so objects can be neither read nor written: %s",
				since.Round(time.Second), enough(servers)))
		}
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	members, err := group.Health(ctx)
	if err != nil {
		return append(all, fmt.Sprintf("server %s leads the names of objects, and this server does not reach it: %s; objects are slow or fail here until it does",
			nameOf(servers, leader), status.Convert(err).Message()))
	}
	for _, m := range members {
		if m.GetHealthy() || m.GetUnknown() || !well(servers, m.GetServer()) {
			continue
		}
		all = append(all, fmt.Sprintf("server %s is not ready to keep the names of objects: %s; objects are slow or fail there until it is; if that lasts, look at its disk and its log",
			nameOf(servers, m.GetServer()), m.GetReason()))
	}
	return all
}

// enough says how many servers must run for one of them to lead.
func enough(servers []*v1.ServerStatus) string {
	voters := 0
	for _, one := range servers {
		if one.GetVoter() {
			voters++
		}
	}
	if voters < 2 {
		return "the server may still be starting; if that lasts, its log says why"
	}
	return fmt.Sprintf("%d of the %d voting servers must run and reach each other", voters/2+1, voters)
}

// well reports whether the status already shows no problem with a server.
func well(servers []*v1.ServerStatus, uid string) bool {
	i := find(servers, uid)
	return i >= 0 && !servers[i].GetJoining() && (servers[i].GetHealthy() || servers[i].GetUnknown())
}

func nameOf(servers []*v1.ServerStatus, uid string) string {
	if i := find(servers, uid); i >= 0 && servers[i].GetName() != "" {
		return servers[i].GetName()
	}
	return uid
}

func find(servers []*v1.ServerStatus, uid string) int {
	return slices.IndexFunc(servers, func(s *v1.ServerStatus) bool { return s.GetUid() == uid })
}
