package main

import (
	_ "embed"
	"encoding/xml"
	"fmt"
	"strings"
	"text/template"
	"unicode/utf8"
)

//go:embed parts.tmpl
var partsTemplate string

//go:embed packet.tmpl
var packetTemplate string

// palette holds the colours of the pictures.
type palette struct {
	Text, Note, Line, Box, Part, Replica string
}

var (
	light = palette{Text: "#1f2328", Note: "#59636e", Line: "#afb8c1", Box: "#f6f8fa", Part: "#ffffff", Replica: "#2da44e"}
	dark  = palette{Text: "#e6edf3", Note: "#9198a1", Line: "#4a525b", Box: "#151b23", Part: "#212830", Replica: "#3fb950"}
)

// partsPicture draws the parts of a cluster.
func partsPicture(colours palette) (string, error) {
	return draw(partsTemplate, struct {
		palette
		Nodes []int // the upper edge of each
	}{colours, []int{24, 140}})
}

// packetPicture draws the path of a packet from a replica on one node to a replica on another.
func packetPicture(colours palette) (string, error) {
	type node struct {
		X                     int
		Title, Replica, Rules string
		Arrows                []string
	}
	var down, up []string
	for _, edges := range [][2]int{{70, 92}, {122, 144}, {190, 212}, {242, 264}} {
		down = append(down, fmt.Sprintf("M118 %dV%d", edges[0], edges[1]))
		up = append(up, fmt.Sprintf("M118 %dV%d", edges[1], edges[0]))
	}
	return draw(packetTemplate, struct {
		palette
		Nodes []node
	}{colours, []node{
		{X: 8, Title: "Node one", Replica: "replica calls http://api", Rules: "virtual address → endpoint", Arrows: down},
		{X: 516, Title: "Node two", Replica: "replica of api", Rules: "allowed by namespace?", Arrows: up},
	}})
}

func draw(text string, data any) (string, error) {
	parsed, err := template.New("picture").Parse(text)
	if err != nil {
		return "", err
	}
	var picture strings.Builder
	err = parsed.Execute(&picture, data)
	return picture.String(), err
}

// recording is a session in a terminal, as it looks in the end. Package test/docs checks that its commands still print
// this.
//
//go:embed recording.txt
var recording string

const recordingHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" xml:space="preserve" role="img" aria-label="Terminal: cloudless up starts a cloud, cloudless run runs a program on it">
<style>
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #c9d1d9 }
  .command { fill: #ffffff; font-weight: 600 }
  .good { fill: #3fb950 }
  text { animation: appear calc(var(--at) * 1s) steps(1) both }
  @keyframes appear { from { visibility: hidden } to { visibility: visible } }
  @media (prefers-reduced-motion: reduce) { text { animation: none } }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0d1117"/>
`

// recordingPicture draws a session. Its commands appear one after the other, each a while before its output. Where
// pictures cannot move, everything is there from the start.
func recordingPicture(session string) string {
	const margin, lineHeight, columnWidth = 16, 19, 8
	const typing, running = 1.0, 0.7 // seconds
	lines := strings.Split(strings.TrimSpace(session), "\n")
	widest, at := 0, 0.0
	var body strings.Builder
	for i, line := range lines {
		class := ""
		if strings.HasPrefix(line, "$ ") {
			class = ` class="command"`
			at += typing
		} else if strings.HasPrefix(lines[i-1], "$ ") {
			at += running
		}
		widest = max(widest, utf8.RuneCountInString(line))
		fmt.Fprintf(&body, `<text x="%d" y="%d" style="--at: %.1f"%s>%s</text>`+"\n",
			margin, margin+lineHeight*(i+1)-6, at, class, strings.ReplaceAll(escape(line), " running ", ` <tspan class="good">running</tspan> `))
	}
	return fmt.Sprintf(recordingHead, 2*margin+columnWidth*widest, 2*margin+lineHeight*len(lines)) + body.String() + "</svg>\n"
}

func escape(text string) string {
	var escaped strings.Builder
	_ = xml.EscapeText(&escaped, []byte(text)) // writing to memory does not fail
	return escaped.String()
}
