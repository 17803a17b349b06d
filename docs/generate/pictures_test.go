package main

import (
	"encoding/xml"
	"strings"
	"testing"
)

func TestPicturesAreWellFormed(t *testing.T) {
	for name, page := range pages {
		if !strings.HasSuffix(name, ".svg") {
			continue
		}
		picture, err := page()
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal([]byte(picture), new(struct{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRecordingShowsCommandsBeforeTheirOutput(t *testing.T) {
	var drawn struct {
		Text []struct {
			Class string `xml:"class,attr"`
			Style string `xml:"style,attr"`
			Text  string `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(recordingPicture("$ one\na < b\nc\n$ two\nd\n")), &drawn); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range drawn.Text {
		got = append(got, strings.Join([]string{line.Style, line.Class, line.Text}, "|"))
	}
	want := "--at: 1.0|command|$ one --at: 1.7||a < b --at: 1.7||c --at: 2.7|command|$ two --at: 3.4||d"
	if strings.Join(got, " ") != want {
		t.Errorf("drawn is %q", got)
	}
}
