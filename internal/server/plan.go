package server

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// planService is the PlanService.
type planService struct {
	v1.UnimplementedPlanServiceServer
	*Server
}
