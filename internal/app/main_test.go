package app

import (
	"flag"
	"os"
	"testing"

	"github.com/cloudless/cloudless/internal/datadir/datadirtest"
)

func TestMain(m *testing.M) {
	datadirtest.Main()
	if err := sideBySide("4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// sideBySide lets more tests run at a time than there are processors, unless -parallel is given: tests with several
// servers wait for elections and for each other most of the time.
func sideBySide(tests string) error {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return nil
	}
	return flag.Set("test.parallel", tests)
}
