package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// schedulingFacts are the part of a description about placement and priority.
func schedulingFacts(f *terminal.Facts, s *cloudlessv1.WorkloadSpec) {
	p := s.GetPlacement()
	f.Add("GPU", gpus(s.GetResources().GetGpu()))
	f.Add("Priority", priorityOf(s))
	f.Add("Placement", terminal.Pairs(p.GetLabels()))
	f.Add("Require", listed(p.GetRequire(), labelRule))
	f.Add("Prefer", listed(p.GetPrefer(), func(l *cloudlessv1.LabelPreference) string {
		return weighed(labelRule(l.GetRule()), l.GetWeight())
	}))
	f.Add("Regions", strings.Join(p.GetRegions(), ", "))
	f.Add("Zones", strings.Join(p.GetZones(), ", "))
	f.Add("Near", near(p))
	f.Add("Spread", listed(p.GetSpread(), spreadOver))
	f.Add("Affinity", listed(p.GetAffinity(), affinity))
	f.Add("Tolerations", listed(p.GetTolerations(), toleration))
	f.Add("Strategy", p.GetStrategy())
	f.Add("Weights", weights(p.GetWeights()))
}

// listed shows a list on one line, with semicolons because the parts may contain commas.
func listed[T any](all []T, show func(T) string) string {
	texts := make([]string, 0, len(all))
	for _, one := range all {
		texts = append(texts, show(one))
	}
	return strings.Join(texts, "; ")
}

func gpus(g *cloudlessv1.Gpu) string {
	if g.GetCount() == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", g.GetCount(), g.GetModel()))
}

// priorityOf is empty if a workload sets neither priority nor minAvailable.
func priorityOf(s *cloudlessv1.WorkloadSpec) string {
	if s.Priority == nil && s.GetMinAvailable() == 0 {
		return ""
	}
	text := fmt.Sprint(spec.PriorityOf(s))
	if s.GetMinAvailable() > 0 {
		text += fmt.Sprintf(", %d must stay when others need the room", s.GetMinAvailable())
	}
	return text
}

// labelRule formats a rule, such as "disk in ssd, nvme".
func labelRule(r *cloudlessv1.LabelRule) string {
	values := strings.Join(r.GetValues(), ", ")
	switch r.GetOperator() {
	case "notIn":
		return r.GetKey() + " not in " + values
	case "exists":
		return r.GetKey() + " exists"
	case "notExists":
		return r.GetKey() + " does not exist"
	case "gt":
		return r.GetKey() + " > " + values
	case "lt":
		return r.GetKey() + " < " + values
	default:
		return r.GetKey() + " " + r.GetOperator() + " " + values
	}
}

// weighed appends the weight of a preference, if it has one.
func weighed(text string, weight int32) string {
	if weight > 0 {
		text += fmt.Sprintf(" (weight %d)", weight)
	}
	return text
}

func near(p *cloudlessv1.Placement) string {
	var all []string
	if p.GetNearRegion() != "" {
		all = append(all, "region "+p.GetNearRegion())
	}
	if p.GetNearZone() != "" {
		all = append(all, "zone "+p.GetNearZone())
	}
	return strings.Join(all, ", ")
}

func spreadOver(s *cloudlessv1.Spread) string {
	text := "over " + cmp.Or(s.GetKey(), "zone")
	if s.GetMaxSkew() > 0 {
		text += fmt.Sprintf(", at most %d apart", s.GetMaxSkew())
	}
	return text
}

// affinity formats a rule, such as "away from web by zone".
func affinity(a *cloudlessv1.Affinity) string {
	text := "with "
	if a.GetAnti() {
		text = "away from "
	}
	if a.GetWorkload() != "" {
		text += a.GetWorkload()
	} else {
		text += "those with " + a.GetLabels()
	}
	return weighed(text+" by "+cmp.Or(a.GetKey(), "node"), a.GetWeight())
}

// toleration formats a toleration like a taint. An empty part matches everything.
func toleration(t *cloudlessv1.Toleration) string {
	text := t.GetKey()
	if t.GetValue() != "" {
		text += "=" + t.GetValue()
	}
	switch {
	case text == "" && t.GetEffect() == "":
		text = "every taint"
	case text == "":
		text = "every " + t.GetEffect()
	case t.GetEffect() != "":
		text += ":" + t.GetEffect()
	}
	if t.GetSeconds() > 0 {
		text += " for " + spec.FormatDuration(time.Duration(t.GetSeconds())*time.Second)
	}
	return text
}

// weights lists the weights that are set, including 0.
func weights(w *cloudlessv1.ScoreWeights) string {
	if w == nil {
		return ""
	}
	var all []string
	for _, part := range []struct {
		name   string
		weight *float64
	}{
		{"locality", w.Locality},
		{"reliability", w.Reliability},
		{"cost", w.Cost},
		{"utilization", w.Utilization},
		{"network", w.Network},
	} {
		if part.weight != nil {
			all = append(all, fmt.Sprintf("%s %g", part.name, *part.weight))
		}
	}
	return strings.Join(all, ", ")
}
