package docs

import (
	"regexp"
	"strings"
)

// block is one fenced block of a page.
type block struct {
	language string // the whole word behind the fence, such as "sh there"
	line     int    // of its fence, from 1
	text     string
	// shown is the block of text that directly follows; empty if none does.
	shown string
}

// blocks are the fenced ones of a page, in order.
func blocks(page string) (all []block) {
	var open *block
	afterBlock := false // nothing but empty lines since the last one
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

// prints reports whether out has every line of shown, in which … stands for
// anything and every run of blanks for any other, and the first that it has not.
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

// links are the targets of all links and pictures of a page.
func links(page string) (all []string) {
	for _, found := range link.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all = append(all, found[1])
	}
	return all
}

// anchors are the names by which the headings of a page can be linked to.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, found := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		name := odd.ReplaceAllString(strings.ToLower(found[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}
