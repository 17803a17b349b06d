// Command browser logs a user in at the provider of package openid, in place of a person with a browser: at the address that is
// its argument, as the user that BROWSER_USER names, with the certificates in the file that BROWSER_CA names.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cloudless/cloudless/test/openid"
)

func main() {
	if err := visit(); err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

func visit() error {
	const address = 1
	if len(os.Args) != address+1 {
		return fmt.Errorf("give it one address")
	}
	ca, err := os.ReadFile(os.Getenv("BROWSER_CA"))
	if err != nil {
		return err
	}
	browser, err := openid.NewBrowser(ca)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	page, err := browser.LogIn(ctx, os.Args[address], os.Getenv("BROWSER_USER"))
	if err != nil {
		return err
	}
	_, err = fmt.Println(page)
	return err
}
