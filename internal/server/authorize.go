package server

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

var (
	anyone   = []string{} // proves itself in another way, see Enroll
	readers  = []string{roleViewer, roleOperator, roleAdmin}
	writers  = []string{roleOperator, roleAdmin}
	admins   = []string{roleAdmin}
	agents   = []string{roleNode}
	servers  = []string{roleServer}
	everyone = []string{roleViewer, roleOperator, roleAdmin, roleNode, roleServer}
)

// permissions says which roles may call a method. What is not listed here is
// refused to everybody.
var permissions = map[string][]string{
	v1.WorkloadService_CreateWorkload_FullMethodName:   writers,
	v1.WorkloadService_ApplyWorkload_FullMethodName:    writers,
	v1.WorkloadService_UpdateWorkload_FullMethodName:   writers,
	v1.WorkloadService_DeleteWorkload_FullMethodName:   writers,
	v1.WorkloadService_ScaleWorkload_FullMethodName:    writers,
	v1.WorkloadService_RestartWorkload_FullMethodName:  writers,
	v1.WorkloadService_RollbackWorkload_FullMethodName: writers,
	v1.WorkloadService_RunWorkload_FullMethodName:      writers,
	v1.WorkloadService_Exec_FullMethodName:             writers,
	v1.WorkloadService_GetWorkload_FullMethodName:      readers,
	v1.WorkloadService_ListWorkloads_FullMethodName:    readers,
	v1.WorkloadService_WatchWorkloads_FullMethodName:   readers,
	v1.WorkloadService_ListReplicas_FullMethodName:     readers,
	v1.WorkloadService_WatchReplicas_FullMethodName:    readers,
	v1.WorkloadService_Logs_FullMethodName:             readers,
	v1.WorkloadService_ListRevisions_FullMethodName:    readers,
	v1.WorkloadService_GetUsage_FullMethodName:         readers,
	v1.WorkloadService_WatchUsage_FullMethodName:       readers,
	v1.WorkloadService_Copy_FullMethodName:             writers,
	v1.PlanService_MakePlan_FullMethodName:             readers,
	v1.PlanService_ApplyPlan_FullMethodName:            writers,
	v1.ExplainService_GetExplanation_FullMethodName:    readers,
	v1.ExplainService_ExplainWorkload_FullMethodName:   readers,

	v1.NamespaceService_GetNamespace_FullMethodName:    readers,
	v1.NamespaceService_ListNamespaces_FullMethodName:  readers,
	v1.NamespaceService_WatchNamespaces_FullMethodName: readers,
	v1.NamespaceService_CreateNamespace_FullMethodName: admins,
	v1.NamespaceService_ApplyNamespace_FullMethodName:  admins,
	v1.NamespaceService_UpdateNamespace_FullMethodName: admins,
	v1.NamespaceService_DeleteNamespace_FullMethodName: admins,

	v1.ClusterService_GetCluster_FullMethodName: everyone,
	v1.ClusterService_WhoAmI_FullMethodName:     everyone,
	v1.NodeService_GetNode_FullMethodName:       readers,
	v1.NodeService_ListNodes_FullMethodName:     readers,
	v1.NodeService_WatchNodes_FullMethodName:    readers,
	v1.ImageService_GetImage_FullMethodName:     readers,
	v1.ImageService_ListImages_FullMethodName:   readers,
	v1.ImageService_DeleteImage_FullMethodName:  writers,
	v1.ImageService_RestoreImage_FullMethodName: writers,
	v1.ImageService_PruneImages_FullMethodName:  writers,
	v1.ImageService_ListLogins_FullMethodName:   readers,
	v1.EventService_ListEvents_FullMethodName:   readers,
	v1.EventService_WatchEvents_FullMethodName:  readers,

	v1.NodeService_DeleteNode_FullMethodName:   admins,
	v1.NodeService_CordonNode_FullMethodName:   writers,
	v1.NodeService_UncordonNode_FullMethodName: writers,
	v1.NodeService_UpdateNode_FullMethodName:   writers,

	v1.ClusterService_GetConfiguration_FullMethodName:      readers,
	v1.ClusterService_ListConfigurations_FullMethodName:    readers,
	v1.ClusterService_SetConfiguration_FullMethodName:      admins,
	v1.ClusterService_RollbackConfiguration_FullMethodName: admins,

	v1.ServerService_ListServers_FullMethodName:    readers,
	v1.ServerService_DeleteServer_FullMethodName:   admins,
	v1.ServerService_TransferLeader_FullMethodName: admins,
	v1.PeerService_GetProgress_FullMethodName:      servers,
	v1.PeerService_LocateServer_FullMethodName:     servers,
	v1.PeerService_ListCopies_FullMethodName:       servers,
	v1.PeerService_GetGossipKey_FullMethodName:     servers,
	v1.PeerService_CopyImage_FullMethodName:        servers,
	v1.PeerService_DropImage_FullMethodName:        servers,
	v1.PeerService_PassCalls_FullMethodName:        servers,

	v1.ImageService_SetLogin_FullMethodName:    admins,
	v1.ImageService_DeleteLogin_FullMethodName: admins,

	v1.TokenService_CreateToken_FullMethodName: admins,
	v1.TokenService_ListTokens_FullMethodName:  admins,
	v1.TokenService_DeleteToken_FullMethodName: admins,

	v1.EnrollmentService_Enroll_FullMethodName:        anyone,
	v1.EnrollmentService_EnrollOwnNode_FullMethodName: servers,
	v1.EnrollmentService_Renew_FullMethodName:         agents,
	v1.AgentService_Session_FullMethodName:            agents,
	v1.AgentService_Attach_FullMethodName:             agents,

	"/grpc.health.v1.Health/Check":                                   everyone,
	"/grpc.health.v1.Health/Watch":                                   everyone,
	"/grpc.health.v1.Health/List":                                    everyone,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      everyone,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": everyone,
}

// membersOnly are the methods that a server may call only if the state has it. The
// others it needs before that, to find its place in the cluster.
var membersOnly = map[string]bool{
	v1.PeerService_ListCopies_FullMethodName:   true,
	v1.PeerService_CopyImage_FullMethodName:    true,
	v1.PeerService_DropImage_FullMethodName:    true,
	v1.PeerService_PassCalls_FullMethodName:    true,
	v1.EnrollmentService_Enroll_FullMethodName: true, // for a machine that joins through it
}

// open reports whether a method is called without an identity.
func open(method string) bool {
	return method == v1.EnrollmentService_Enroll_FullMethodName
}

// forbidden is a refusal to an identity that is known.
type forbidden struct {
	principal Principal
	what      string
	roles     []string
}

func (f *forbidden) Error() string {
	refusal := fmt.Sprintf("%s has role %q, which may not %s; it needs role %s",
		f.principal.ID.Name(), f.principal.Role, f.what, strings.Join(f.roles, " or "))
	if !slices.Contains(f.roles, roleAdmin) {
		return refusal // only machines may, and no API token makes its bearer one
	}
	return refusal + ": ask an admin for a token made with: cloudless token create --role " + f.roles[0]
}

func authorize(p Principal, method string) error {
	roles := permissions[method]
	if slices.Contains(roles, p.Role) {
		return nil
	}
	return &forbidden{principal: p, what: "call " + strings.TrimPrefix(method, "/"), roles: roles}
}

// authorizeEarly is the same before the message is read. Methods that do not exist
// and those that need no identity are answered later.
func authorizeEarly(p Principal, method string) error {
	if _, listed := permissions[method]; !listed || open(method) {
		return nil
	}
	return authorize(p, method)
}

// authorizeHTTP is the same for what is served besides the API: the registry
// may be read by all and written by writers, everything else is for readers.
func authorizeHTTP(p Principal, registry, write bool) error {
	roles, what := readers, "read this"
	switch {
	case registry && write:
		roles, what = writers, "push images"
	case registry:
		roles, what = everyone, "pull images"
	}
	if slices.Contains(roles, p.Role) {
		return nil
	}
	return &forbidden{principal: p, what: what, roles: roles}
}
