package docs

import (
	"regexp"
	"strings"
)

// block is one fenced block of a page.
type block struct {
	language string // everything behind the fence, such as "sh there"
	line     int    // line number of the fence, from 1
	text     string
	// shown is the text block that directly follows; empty if there is none.
	shown string
}

// blocks returns the fenced blocks of a page, in order.
func blocks(page string) (all []block) {
	var open *block
	afterBlock := false // only empty lines since the last block
	for i, line := range strings.Split(page, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case open == nil && isFence:
			open = &block{language: fence, line: i + 1}
		case open != nil && line == "```":
			if open.language == "text" && afterBlock && len(all) > 0 {
				all[len(all)-1].shown = open.text
				afterBlock = false
			} else {
				afterBlock = true
			}
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.TrimSpace(line) != "":
			afterBlock = false
		}
	}
	return all
}

// prints reports whether out contains every line of shown, and else the first line that is missing. In shown, … matches
// anything, and blanks match any number of blanks.
func prints(out, shown string) (missing string, ok bool) {
	for line := range strings.Lines(shown) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for i, word := range words {
			words[i] = strings.ReplaceAll(regexp.QuoteMeta(word), "…", ".*")
		}
		if !regexp.MustCompile(`(?m)^\s*` + strings.Join(words, `\s+`) + `\s*$`).MatchString(out) {
			return strings.TrimSpace(line), false
		}
	}
	return "", true
}

var (
	link    = regexp.MustCompile(`(?:\]\(|src(?:set)?=")([^)"\s]+)[)"]`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	odd     = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// links returns the targets of all links and pictures of a page.
func links(page string) (all []string) {
	for _, found := range link.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all = append(all, found[1])
	}
	return all
}

// anchors returns the link targets of the headings of a page.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, found := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		name := odd.ReplaceAllString(strings.ToLower(found[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}
