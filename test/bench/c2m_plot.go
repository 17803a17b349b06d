package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The size of the drawing and of its margins.
const (
	plotWidth, plotHeight = 800, 420
	plotLeft, plotBottom  = 80, 50
	plotTop, plotRight    = 40, 20
)

// curve is a line of the drawing.
type curve struct {
	name, colour string
	of           func(crowdMoment) int
}

var curves = []curve{
	{"placed", "#1f6feb", func(m crowdMoment) int { return m.placed }},
	{"acknowledged", "#2da44e", func(m crowdMoment) int { return m.running }},
}

// draw writes the drawing of the run into build.
func (r *crowdRun) draw() (err error) {
	r.plot = filepath.Join("build", "c2m.svg")
	file, err := os.Create(r.plot)
	if err != nil {
		return err
	}
	plotCrowd(file, r.history, r.began, r.snapshots, r.replicas)
	return file.Close()
}

// plotCrowd draws replicas over time. Snapshots are grey.
func plotCrowd(to io.Writer, history []crowdMoment, began time.Time, snapshots []span, of int) {
	end := 1.0
	if len(history) > 0 {
		end = max(end, history[len(history)-1].at.Seconds())
	}
	x := func(seconds float64) float64 { return plotLeft + seconds/end*(plotWidth-plotLeft-plotRight) }
	y := func(n int) float64 {
		return plotHeight - plotBottom - float64(n)/float64(of)*(plotHeight-plotBottom-plotTop)
	}
	fmt.Fprintf(to, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(to, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(to, `<text x="%d" y="22" font-size="15">%d replicas in %.0f s</text>`+"\n", plotLeft, of, end)
	for _, s := range snapshots {
		from, until := x(s.begin.Sub(began).Seconds()), x(s.end.Sub(began).Seconds())
		fmt.Fprintf(to, `<rect x="%.1f" y="%d" width="%.1f" height="%.1f" fill="#eee"/>`+"\n", from, plotTop, max(1, until-from), y(0)-plotTop)
	}
	for i := range 5 {
		n, seconds := of*i/4, end*float64(i)/4
		fmt.Fprintf(to, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, plotWidth-plotRight, y(n), y(n))
		fmt.Fprintf(to, `<text x="%d" y="%.1f" text-anchor="end">%d</text>`+"\n", plotLeft-8, y(n)+4, n)
		fmt.Fprintf(to, `<text x="%.1f" y="%d" text-anchor="middle">%.0f s</text>`+"\n", x(seconds), plotHeight-plotBottom+20, seconds)
	}
	for i, c := range curves {
		points := make([]string, len(history))
		for j, m := range history {
			points[j] = fmt.Sprintf("%.1f,%.1f", x(m.at.Seconds()), y(c.of(m)))
		}
		fmt.Fprintf(to, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`+"\n", c.colour, strings.Join(points, " "))
		fmt.Fprintf(to, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", plotLeft+12, plotTop+16+18*i, c.colour, c.name)
	}
	fmt.Fprintln(to, "</svg>")
}
