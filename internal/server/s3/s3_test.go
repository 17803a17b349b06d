package s3

import (
	"bytes"
	"testing"
)

func TestObjectIsReadAsItWasPut(t *testing.T) {
	g := newGateway(t)
	g.bucket("photos")
	for _, size := range []int{0, 1, 4096, 10 << 20} {
		want := bytesOf(size)
		g.put("photos", "cat.jpg", want)
		if got := g.get("photos", "cat.jpg"); !bytes.Equal(got, want) {
			t.Errorf("%d bytes were put, and %d others came back", len(want), len(got))
		}
	}
}
