package auth

import (
	"testing"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
)

// A request about a kind in namespaces names its namespace where the guard finds it.
func TestNamespaceOfEveryRequestIsFound(t *testing.T) {
	for m := range api.Methods() {
		if !m.IsForRoles() || m.Kind == api.AnyKind || !roles.Scoped(m.Verbs[0], m.Kind) {
			continue
		}
		s := scopes()[m.Name]
		if m.Kind != "namespace" && m.Kind != "image" && len(s.path) == 0 {
			t.Errorf("%s is about %s, and its request has no namespace", m.Name, m.Kind)
		}
	}
}

func TestRequestsNeedPermissionsInTheirNamespace(t *testing.T) {
	for name, about := range map[string]struct {
		method  string
		request any
		want    string
	}{
		"a field":              {v1.WorkloadService_GetWorkload_FullMethodName, &v1.GetWorkloadRequest{Namespace: "shop"}, "get on workload in namespace shop"},
		"the default one":      {v1.WorkloadService_GetWorkload_FullMethodName, &v1.GetWorkloadRequest{}, "get on workload in namespace default"},
		"metadata":             {v1.RouteService_UpdateRoute_FullMethodName, &v1.UpdateRouteRequest{Route: &v1.Route{Metadata: &v1.Metadata{Namespace: "shop"}}}, "update on route in namespace shop"},
		"no metadata":          {v1.RouteService_UpdateRoute_FullMethodName, &v1.UpdateRouteRequest{}, "update on route in namespace default"},
		"a selection":          {v1.WorkloadService_ListReplicas_FullMethodName, &v1.ListReplicasRequest{Selection: &v1.Selection{Namespace: "shop"}}, "get on replica in namespace shop"},
		"a stream":             {v1.WorkloadService_Exec_FullMethodName, &v1.ExecRequest{Message: &v1.ExecRequest_Start{Start: &v1.ExecStart{Namespace: "shop"}}}, "exec on workload in namespace shop"},
		"a namespace":          {v1.NamespaceService_GetNamespace_FullMethodName, &v1.GetNamespaceRequest{Name: "shop"}, "get on namespace in namespace shop"},
		"a quota":              {v1.NamespaceService_ApplyNamespace_FullMethodName, &v1.ApplyNamespaceRequest{Namespace: &v1.Namespace{Metadata: &v1.Metadata{Name: "shop"}}}, "create or update on namespace"},
		"an image":             {v1.ImageService_DeleteImage_FullMethodName, &v1.DeleteImageRequest{Name: "shop/web:1"}, "delete on image in namespace shop"},
		"an image of everyone": {v1.ImageService_DeleteImage_FullMethodName, &v1.DeleteImageRequest{Name: "web:1"}, "delete on image"},
		"a node":               {v1.NodeService_GetNode_FullMethodName, &v1.GetNodeRequest{Name: "n"}, "get on node"},
	} {
		need, ok := needOf(about.method, about.request)
		if !ok || need.Somewhere || need.String() != about.want {
			t.Errorf("%s: %q, want %q", name, need, about.want)
		}
	}
	for _, method := range []string{v1.WorkloadService_ListWorkloads_FullMethodName, v1.EventService_WatchEvents_FullMethodName, v1.ImageService_ListImages_FullMethodName} {
		m, _ := api.MethodOf(method)
		if need, _ := needOf(method, m.Descriptor.Input()); need.Somewhere {
			t.Errorf("%s: not a message, and it needs %q", method, need)
		}
	}
	if need, _ := needOf(v1.WorkloadService_ListWorkloads_FullMethodName, &v1.ListWorkloadsRequest{}); !need.Somewhere {
		t.Errorf("a list of all namespaces needs %q", need)
	}
	if need, _ := needOf(v1.NodeService_ListNodes_FullMethodName, &v1.ListNodesRequest{}); need.Somewhere {
		t.Errorf("a list of nodes needs %q somewhere", need)
	}
}
