package consistency

import (
	"slices"
	"strings"
	"testing"
)

var some, other = Content{Writer: 1, Number: 7, Size: 1000}, Content{Writer: 2, Number: 3, Size: 1000}

func TestContentIsRecognized(t *testing.T) {
	for _, size := range []int64{LeastSize, 1000, 4096, 100_001} {
		c := Content{Writer: 3, Number: 9, Size: size}
		found, err := Identify(c.Bytes())
		if err != nil || found != c || int64(len(c.Bytes())) != size {
			t.Errorf("%v is found to be %v (%v)", c, found, err)
		}
	}
}

func TestRangesOfContentAreRecognized(t *testing.T) {
	all := some.Bytes()
	for from := int64(0); from < 200; from += 7 {
		found, err := IdentifyRange(all[from:from+300], from)
		if err != nil || found != some {
			t.Fatalf("bytes from %d are found to be %v (%v)", from, found, err)
		}
	}
	if found, err := IdentifyRange(all[64:300], 32); err == nil {
		t.Errorf("bytes of another place are found to be %v", found)
	}
}

func TestTornContentIsNoticed(t *testing.T) {
	mine, theirs := some.Bytes(), other.Bytes()
	flipped := slices.Clone(mine)
	flipped[777] ^= 1
	for what, test := range map[string]struct {
		body []byte
		says string
	}{
		"two writes mixed":        {slices.Concat(mine[:640], theirs[640:]), "byte 640 of content 2.3"},
		"a missing part":          {slices.Concat(mine[:320], mine[640:]), "from byte 320 on what belongs to byte 640"},
		"a missing end":           {mine[:500], "has only 500 bytes"},
		"bytes after the end":     {slices.Concat(mine, theirs[:32]), "has bytes up to 1032"},
		"a flipped bit":           {flipped, "what nobody wrote"},
		"a missing beginning":     {mine[33:], "nobody wrote"},
		"zeros":                   {make([]byte, 1000), "nobody wrote"},
		"nothing":                 {nil, "0 bytes do not say"},
		"the shorter of two ends": {slices.Concat(mine[:992], theirs[992:]), "from byte 992 on what nobody wrote"},
	} {
		found, err := Identify(test.body)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: found to be %v (%v)", what, found, err)
		}
	}
}
