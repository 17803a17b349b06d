package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ipam"
	"github.com/cloudless/cloudless/internal/spec"
)

// configurationText is the page without its table.
//
//go:embed configuration.tmpl
var configurationText string

// settingsMark is the line of the text that the table replaces.
const settingsMark = "SETTINGS\n"

// saysDefault is the end of a sentence that repeats the column beside it.
var saysDefault = regexp.MustCompile(`; ([^;]* if (empty|0)|[0-9,]+ if not set)\.$`)

// foundedWith holds settings that every cluster gets when it is founded.
var foundedWith = map[string]string{
	"rangeV4": "`" + ipam.DefaultRange4(netip.Addr{}, nil).String() + "`, or another private range where the founding machine uses addresses of that one",
	"rangeV6": "a `/48` drawn at random",
}

// configurationReference returns the page about the cluster's configuration: its settings with their defaults and
// descriptions.
func configurationReference(openAPI []byte) (string, error) {
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		return "", fmt.Errorf("read the OpenAPI document: %w", err)
	}
	var rows strings.Builder
	rows.WriteString("| setting | default | what |\n| --- | --- | --- |\n")
	for _, s := range spec.Settings(&v1.ClusterSpec{
		NodeClasses: []*v1.NodeClass{{Name: "NAME"}},
		Acme:        &v1.Acme{Dns: &v1.AcmeDns{Settings: map[string]string{"NAME": "none"}}},
	}) {
		steps := strings.Split(s.Key, ".")
		if last := len(steps) - 1; steps[last-min(1, last)] == "reserved" {
			steps = steps[:last] // the amounts are described as those of workloads
		}
		about := d.about("v1ClusterSpec", steps)
		if about == "" {
			return "", fmt.Errorf("the contract says nothing about the setting %s", s.Key)
		}
		about = saysDefault.ReplaceAllString(about, ".")
		standard := "`" + s.Value + "`"
		switch {
		case foundedWith[s.Key] != "":
			standard = foundedWith[s.Key]
		case strings.HasPrefix(s.Key, "nodeClasses.") && (s.Value != "none" || strings.Contains(s.Key, ".reserved.")):
			standard = "as for the cluster"
		case s.Value == "none":
			standard = "none"
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", s.Key, standard, about)
	}
	text := strings.Replace(configurationText, settingsMark, rows.String(), 1)
	if text == configurationText {
		return "", fmt.Errorf("the text has no line %q", settingsMark)
	}
	return text, nil
}

// about returns the description of a field in the contract, or that of its message if the field has none.
func (d document) about(message string, steps []string) string {
	said := ""
	for len(steps) > 0 {
		property := d.Definitions[message].Properties[steps[0]]
		ref := property.Ref
		steps = steps[1:]
		if property.Items != nil && len(steps) > 0 { // the next step is the name of an entry
			ref, steps = property.Items.Ref, steps[1:]
		}
		message = ref[strings.LastIndexByte(ref, '/')+1:]
		whole := d.Definitions[message]
		for _, text := range []string{whole.Title + " " + whole.Description, property.Title + " " + property.Description} {
			if text = oneLine(text); text != "" {
				said = text
			}
		}
	}
	return said
}
