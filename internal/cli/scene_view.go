package cli

import (
	"fmt"
	"os"
	"strings"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// sceneView shows a scene: on a terminal as a tree that is drawn over itself, elsewhere as a line for each change.
type sceneView struct {
	c     *cli
	scene *scene
	// screen is the terminal, nil if there is none.
	screen *terminal.Canvas
	style  terminal.Style
	dirty  bool
	said   map[string]string // by replica: the last line about it
}

func (c *cli) newSceneView(s *scene) *sceneView {
	v := &sceneView{c: c, scene: s, said: map[string]string{}, dirty: true}
	if f, ok := c.Stderr.(*os.File); ok && terminal.IsTerminal(f) {
		v.screen = terminal.NewCanvas(f, false)
		v.style = terminal.StyleFor(f)
	}
	return v
}

// saw is told of every update and whose it was.
func (v *sceneView) saw(a *actor, update client.Update) {
	v.dirty = true
	r := update.Replica
	if v.screen != nil || a == nil || r == nil || update.Removed || !v.c.ForPeople() {
		return
	}
	uid, line := r.GetMetadata().GetUid(), replicaLine(r)
	before, known := v.said[uid]
	v.said[uid] = line
	calm := r.GetStatus().GetPhase() == "running" || ended(r)
	if line == before || !known && calm && !v.scene.synced[r.GetMetadata().GetNamespace()] {
		return // it was so before
	}
	_ = v.c.Printf("%s\n", line)
}

func ended(r *cloudlessv1.Replica) bool {
	switch r.GetStatus().GetPhase() {
	case "completed", "failed", "stopped", "lost":
		return true
	}
	return false
}

// replicaLine is a replica in one line.
func replicaLine(r *cloudlessv1.Replica) string {
	text := r.GetMetadata().GetName() + ": " + r.GetStatus().GetPhase()
	if node := r.GetSpec().GetNode(); node != "" {
		text += " on " + node
	}
	if why := replicaWhy(r); why != "" {
		text += ": " + why
	}
	return terminal.Plain(text)
}

// replicaWhy is what there is to say beside the phase.
func replicaWhy(r *cloudlessv1.Replica) string {
	if p := r.GetStatus().GetProgress(); p != nil && r.GetStatus().GetPhase() == "preparing" {
		return progressText(p)
	}
	if r.GetStatus().GetPhase() == "running" && r.GetStatus().GetReason() == "" {
		return "" // how it ended before is past
	}
	return terminal.Plain(replicaReason(r))
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

// draw draws the tree over the one before.
func (v *sceneView) draw() {
	if v.screen == nil || !v.dirty {
		return
	}
	v.dirty = false
	_ = v.screen.Draw(v.tree(v.screen.Size()))
}

// close draws the tree for the last time, or takes it away when the output is for programs.
func (v *sceneView) close() {
	if v.screen == nil {
		return
	}
	if v.c.ForPeople() {
		v.draw()
	} else {
		_ = v.screen.Draw(nil)
	}
}

// summary says how the workloads are in the end, unless the tree has said so.
func (v *sceneView) summary(workloads []*cloudlessv1.Workload) error {
	if !v.c.ForPeople() || v.screen != nil && terminal.IsTerminal(v.c.Stdout) {
		return nil
	}
	for _, w := range workloads {
		if err := v.c.Printf("%s: %s\n", w.GetMetadata().GetName(), standing(w)); err != nil {
			return err
		}
	}
	return nil
}

// tree is the scene in lines. What runs gives way to what does not where the terminal is too small for all.
func (v *sceneView) tree(width, height int) []string {
	room := max(1, (height-1)/max(1, len(v.scene.actors))-1)
	var lines []string
	for _, a := range v.scene.actors {
		lines = append(lines, terminal.Shorten(a.title(), width))
		lines = append(lines, a.branches(width, room, v.style)...)
	}
	return lines
}

func (a *actor) title() string {
	name := a.asked.GetMetadata().GetName()
	switch {
	case a.action == actionDelete && a.now.GetMetadata().GetDeleteTime() == nil:
		return name + ": deleted"
	case a.action == actionDelete:
		return name + ": being deleted"
	case a.now == nil:
		return name
	}
	return terminal.Plain(name + ": " + standing(a.now))
}

// phaseColours are those of the phases that mean something good or bad.
var phaseColours = map[string]terminal.Colour{
	"running": terminal.Green, "completed": terminal.Green, "failed": terminal.Red, "backoff": terminal.Red, "lost": terminal.Red, "unknown": terminal.Red, "pending": terminal.Yellow, "placed": terminal.Yellow, "preparing": terminal.Yellow,
}

func (a *actor) branches(width, room int, style terminal.Style) []string {
	replicas := a.shown()
	hidden := 0
	if len(replicas) > room {
		var open, calm []*cloudlessv1.Replica
		for _, r := range replicas {
			if r.GetStatus().GetPhase() == "running" {
				calm = append(calm, r)
			} else {
				open = append(open, r)
			}
		}
		replicas = append(open, calm...)
		hidden = len(replicas) - max(0, room-1)
		replicas = replicas[:len(replicas)-hidden]
	}
	names, nodes := 0, 1
	for _, r := range replicas {
		names, nodes = max(names, len(r.GetMetadata().GetName())), max(nodes, len(r.GetSpec().GetNode()))
	}
	var lines []string
	for i, r := range replicas {
		lead := style.Branch(i == len(replicas)-1 && hidden == 0)
		node := r.GetSpec().GetNode()
		if node == "" {
			node = "-"
		}
		phase := r.GetStatus().GetPhase()
		line := fmt.Sprintf("%s%-*s  %-9s  %-*s  %s", lead, names, terminal.Plain(r.GetMetadata().GetName()), phase, nodes, terminal.Plain(node), replicaWhy(r))
		line = terminal.Shorten(strings.TrimRight(line, " "), width)
		lines = append(lines, strings.Replace(line, "  "+phase, "  "+style.Paint(phaseColours[phase], phase), 1))
	}
	if hidden > 0 {
		lines = append(lines, terminal.Shorten(style.Branch(true)+fmt.Sprintf("and %d more", hidden), width))
	}
	return lines
}
