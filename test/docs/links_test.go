package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const repository = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// pages are README.md and everything in docs.
func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(all) < 5 {
		t.Fatalf("found only %q, %v", all, err)
	}
	return append(all, filepath.Join(repository, "README.md"))
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	for _, path := range pages(t) {
		for _, target := range links(read(t, path)) {
			if strings.Contains(target, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", path, target, err)
				continue
			}
			if anchor != "" && !anchors(read(t, to))[anchor] {
				t.Errorf("%s links to %s, and there is no such heading", path, target)
			}
		}
	}
}

func TestEveryPageIsLinkedFromTheREADME(t *testing.T) {
	linked := links(read(t, filepath.Join(repository, "README.md")))
	for _, path := range pages(t) {
		name := "docs/" + filepath.Base(path)
		if filepath.Base(path) != "README.md" && !slices.Contains(linked, name) {
			t.Errorf("README.md does not link to %s", name)
		}
	}
}

// The nouns are the commands that have subcommands, and the kinds that cloudless get knows.
func TestGlossaryHasEveryNounOfTheCommandLine(t *testing.T) {
	glossary := read(t, filepath.Join(repository, "docs", "glossary.md"))
	reference := read(t, filepath.Join(repository, "docs", "cli.md"))
	var nouns []string
	for _, found := range regexp.MustCompile(`(?m)^### cloudless ([a-z]+) [a-z]+$`).FindAllStringSubmatch(reference, -1) {
		nouns = append(nouns, found[1])
	}
	kinds := regexp.MustCompile(`works for every kind: ([a-z, ]+)\.`).FindStringSubmatch(reference)
	if len(nouns) < 10 || kinds == nil {
		t.Fatalf("found the nouns %q and the kinds %q", nouns, kinds)
	}
	for _, noun := range append(nouns, strings.Split(kinds[1], ", ")...) {
		if !strings.Contains(glossary, "\n| "+noun+" |") {
			t.Errorf("docs/glossary.md does not explain %q", noun)
		}
	}
}

func TestBlocksLinksAndAnchorsAreFound(t *testing.T) {
	page := "# A Page: it's `new`\n[one](x.md#y) text <img src=\"p.svg\">\n```sh\nls [no](link)\n# no heading\n```\n\n```text\na … c\n```\nwords\n```text\nalone\n```\n```sh there\nps\n```\n"
	got := blocks(page)
	if len(got) != 4 || got[0].text != "ls [no](link)\n# no heading\n" || got[0].shown != "a … c\n" || got[0].line != 3 ||
		got[2].shown != "" || got[3].language != "sh there" {
		t.Errorf("blocks are %+v", got)
	}
	if got := links(page); !slices.Equal(got, []string{"x.md#y", "p.svg"}) {
		t.Errorf("links are %q", got)
	}
	if got := anchors(page); !got["a-page-its-new"] || len(got) != 1 {
		t.Errorf("anchors are %v", got)
	}
	if missing, ok := prints("x\n  a   b c \n", "a … c\n\nd\n"); ok || missing != "d" {
		t.Errorf("missing is %q, %v", missing, ok)
	}
	if _, ok := prints("ab c\n", "a b c\n"); ok {
		t.Error("two words are not one")
	}
}

// The example of a page is the file that an end-to-end story applies, so that it cannot be outdated.
func TestExampleOfProbesIsApplied(t *testing.T) {
	story := read(t, filepath.Join(repository, "test", "e2e", "testdata", "probes.txtar"))
	shown := blocks(read(t, filepath.Join(repository, "docs", "probes.md")))
	if len(shown) != 1 || !strings.Contains(story, "-- shop.yaml --\n"+shown[0].text+"-- ") {
		t.Errorf("docs/probes.md shows another file than the story probes applies: %v", shown)
	}
}
