package membership

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// fixedBy is the request of a machine with the name, labels and zone that its join token fixes. A machine that asks for
// others is refused. Without a token nothing is fixed.
func fixedBy(token *v1.Token, request *v1.EnrollRequest) (*v1.EnrollRequest, error) {
	about := token.GetSpec()
	if about.GetNodeName() == "" && len(about.GetNodeLabels()) == 0 && about.GetZone() == "" {
		return request, nil
	}
	name := token.GetMetadata().GetName()
	fixed := proto.CloneOf(request)
	if wanted := about.GetNodeName(); wanted != "" {
		if request.GetNamed() && request.GetName() != wanted {
			return nil, core.Refuse(codes.PermissionDenied, "join token %s is for a machine with the name %s, and this one asks to be called %s: join without --name, or ask for another token", name, wanted, request.GetName())
		}
		fixed.Name = wanted
	}
	for key, value := range request.GetLabels() {
		wanted, given := about.GetNodeLabels()[key]
		if key == spec.LabelZone && about.GetZone() != "" {
			wanted, given = about.GetZone(), true
		}
		if (given || len(about.GetNodeLabels()) > 0) && wanted != value {
			return nil, core.Refuse(codes.PermissionDenied, "join token %s fixes the labels of the machine, and %s=%s is not among them: join without --label, or ask for another token", name, key, value)
		}
	}
	if fixed.Labels == nil {
		fixed.Labels = map[string]string{}
	}
	for key, value := range about.GetNodeLabels() {
		fixed.Labels[key] = value
	}
	if zone := about.GetZone(); zone != "" {
		if server := fixed.GetServer(); server != nil {
			if server.GetZone() != "" && server.GetZone() != zone {
				return nil, core.Refuse(codes.PermissionDenied, "join token %s is for a server in zone %s, and this one asks for zone %s: join without --zone, or ask for another token", name, zone, server.GetZone())
			}
			server.Zone = zone
		} else {
			fixed.Labels[spec.LabelZone] = zone
		}
	}
	return fixed, nil
}

// nameFree refuses a machine whose name the token fixes, if another one has the name.
func nameFree(token *v1.Token, taken bool, kind string) error {
	name := token.GetSpec().GetNodeName()
	if name == "" || !taken {
		return nil
	}
	return core.Refuse(codes.AlreadyExists, "the join token is for %s %s, and there is one already: if it is the one that joins again, remove it first with: cloudless %s rm %s", kind, name, kind, name)
}
