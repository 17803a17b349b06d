package wait

import (
	"fmt"
	"os"
	"strings"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// view shows a tracker: on a terminal as a tree that is redrawn, elsewhere as a line for each change.
type view struct {
	env     *command.Env
	tracker *tracker
	// screen is the terminal, nil if there is none.
	screen *terminal.Canvas
	style  terminal.Style
	dirty  bool
	said   map[string]string // by replica: the last line about it
}

func newView(e *command.Env, t *tracker) *view {
	v := &view{env: e, tracker: t, said: map[string]string{}, dirty: true}
	if f, ok := e.Stderr.(*os.File); ok && terminal.IsTerminal(f) {
		v.screen = terminal.NewCanvas(f, false)
		v.style = terminal.StyleFor(f)
	}
	return v
}

// show shows an update, which is about workload w.
func (v *view) show(w *tracked, update client.Update) {
	v.dirty = true
	r := update.Replica
	if v.screen != nil || w == nil || r == nil || update.Removed || !v.env.ForPeople() || r.GetStatus().GetUnready() == spec.JustStarted {
		return
	}
	uid, line := r.GetMetadata().GetUid(), replicaLine(r)
	before, known := v.said[uid]
	v.said[uid] = line
	calm := spec.Serves(r) || phrase.Ended(r)
	if line == before || !known && calm && !v.tracker.synced[r.GetMetadata().GetNamespace()] {
		return // it was like that before
	}
	_ = v.env.Printf("%s\n", line)
}

// replicaLine is a replica in one line.
func replicaLine(r *cloudlessv1.Replica) string {
	text := r.GetMetadata().GetName() + ": " + phrase.ReplicaPhase(r)
	if node := r.GetSpec().GetNode(); node != "" {
		text += " on " + node
	}
	if why := replicaWhy(r); why != "" {
		text += ": " + why
	}
	return terminal.Plain(text)
}

// replicaWhy is the reason to show beside the phase.
func replicaWhy(r *cloudlessv1.Replica) string {
	if p := r.GetStatus().GetProgress(); p != nil && r.GetStatus().GetPhase() == spec.PhasePreparing {
		return progressText(p)
	}
	if spec.Serves(r) && r.GetStatus().GetReason() == "" {
		return "" // how it ended before does not matter any more
	}
	return terminal.Plain(phrase.ReplicaReason(r))
}

func progressText(p *cloudlessv1.Progress) string {
	text := terminal.Plain(p.GetWhat())
	switch {
	case p.GetTotalBytes() > 0:
		return fmt.Sprintf("%s: %d of %d MB", text, p.GetDoneBytes()>>20, (p.GetTotalBytes()+1<<20-1)>>20)
	case p.GetDoneBytes() > 0:
		return fmt.Sprintf("%s: %d MB", text, p.GetDoneBytes()>>20)
	}
	return text
}

// draw redraws the tree.
func (v *view) draw() {
	if v.screen == nil || !v.dirty {
		return
	}
	v.dirty = false
	_ = v.screen.Draw(v.tree(v.screen.Size()))
}

// close draws the tree for the last time, or erases it if the output is for programs.
func (v *view) close() {
	if v.screen == nil {
		return
	}
	if v.env.ForPeople() {
		v.draw()
	} else {
		_ = v.screen.Draw(nil)
	}
}

// summary prints how the workloads are in the end, unless the tree shows it.
func (v *view) summary(workloads []*cloudlessv1.Workload) error {
	if !v.env.ForPeople() || v.screen != nil && terminal.IsTerminal(v.env.Stdout) {
		return nil
	}
	for _, w := range workloads {
		if err := v.env.Printf("%s: %s\n", w.GetMetadata().GetName(), phrase.Status(w)); err != nil {
			return err
		}
	}
	return nil
}

// tree is the workloads and replicas in lines. Where they do not all fit, running replicas are left out first.
func (v *view) tree(width, height int) []string {
	room := max(1, (height-1)/max(1, len(v.tracker.workloads))-1)
	var lines []string
	for _, w := range v.tracker.workloads {
		lines = append(lines, terminal.Shorten(w.title(), width))
		lines = append(lines, w.branches(width, room, v.style)...)
	}
	return lines
}

func (w *tracked) title() string {
	name := w.asked.GetMetadata().GetName()
	switch {
	case w.action == spec.ActionDelete && w.now.GetMetadata().GetDeleteTime() == nil:
		return name + ": deleted"
	case w.action == spec.ActionDelete:
		return name + ": being deleted"
	case w.now == nil:
		return name
	}
	text := name + ": " + phrase.Status(w.now)
	if w.deploying() {
		text += fmt.Sprintf(" (deployment %d %s: %s)", w.deployment.GetSpec().GetNumber(), w.deployment.GetStatus().GetPhase(), phrase.Deployed(w.deployment))
	}
	return terminal.Plain(text)
}

// phaseColours are the colours of phases that are good or bad.
var phaseColours = map[string]terminal.Colour{
	spec.PhaseRunning: terminal.Green, spec.PhaseCompleted: terminal.Green, spec.PhaseFailed: terminal.Red, spec.PhaseBackoff: terminal.Red, spec.PhaseLost: terminal.Red, spec.PhaseUnknown: terminal.Red, spec.PhasePending: terminal.Yellow, spec.PhasePlaced: terminal.Yellow, spec.PhasePreparing: terminal.Yellow, phrase.NotReady: terminal.Yellow,
}

func (w *tracked) branches(width, room int, style terminal.Style) []string {
	replicas := w.shown()
	hidden := 0
	if len(replicas) > room {
		var open, calm []*cloudlessv1.Replica
		for _, r := range replicas {
			if spec.Serves(r) {
				calm = append(calm, r)
			} else {
				open = append(open, r)
			}
		}
		replicas = append(open, calm...)
		hidden = len(replicas) - max(0, room-1)
		replicas = replicas[:len(replicas)-hidden]
	}
	names, nodes, phases := 0, 1, len(spec.PhasePreparing)
	for _, r := range replicas {
		names, nodes, phases = max(names, len(r.GetMetadata().GetName())), max(nodes, len(r.GetSpec().GetNode())), max(phases, len(phrase.ReplicaPhase(r)))
	}
	var lines []string
	for i, r := range replicas {
		lead := style.Branch(i == len(replicas)-1 && hidden == 0)
		node := r.GetSpec().GetNode()
		if node == "" {
			node = "-"
		}
		phase := phrase.ReplicaPhase(r)
		line := fmt.Sprintf("%s%-*s  %-*s  %-*s  %s", lead, names, terminal.Plain(r.GetMetadata().GetName()), phases, phase, nodes, terminal.Plain(node), w.standing(r))
		line = terminal.Shorten(strings.TrimRight(line, " "), width)
		lines = append(lines, strings.Replace(line, "  "+phase, "  "+style.Paint(phaseColours[phase], phase), 1))
	}
	if hidden > 0 {
		lines = append(lines, terminal.Shorten(style.Branch(true)+fmt.Sprintf("and %d more", hidden), width))
	}
	return lines
}
