// Command wireguard is a bare WireGuard device in user space, with nothing around it: the floor for the mesh.
//
//	wireguard NAME PRIVATE PORT PEER ENDPOINT ALLOWED
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tailscale/wireguard-go/conn"
	"github.com/tailscale/wireguard-go/device"
	"github.com/tailscale/wireguard-go/tun"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 6 {
		return fmt.Errorf("usage: wireguard NAME PRIVATE PORT PEER ENDPOINT ALLOWED")
	}
	link, err := tun.CreateTUN(args[0], 1420)
	if err != nil {
		return err
	}
	d := device.NewDevice(link, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, args[0]))
	defer d.Close()
	err = d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%s\npublic_key=%s\nendpoint=%s\nallowed_ip=%s\n", args[1], args[2], args[3], args[4], args[5]))
	if err == nil {
		err = d.Up()
	}
	if err != nil {
		return err
	}
	fmt.Println("up")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	return nil
}
