package importer

import (
	"fmt"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/balancer/keys"
)

// manual has every word of keepalived.conf(5) of keepalived 2.3 and of its parser, older and newer
// ones among them, by the block in which it stands: those that are taken over, and those that are
// left out, which a note names.
var manual = []struct{ block, taken, named string }{
	{"", "virtual_server virtual_server_group",
		`SSL net_namespace net_namespace_ipvs bfd_instance vrrp_instance vrrp_sync_group vrrp_script vrrp_track_process vrrp_track_file
		track_group track_file garp_group static_ipaddress static_routes static_rules linkbeat_interfaces linkbeat_use_polling
		interface_up_down_delays namespace_with_ipsets use_pid_dir instance child_wait_time global_defs
		include includer includem includew includeb includea`},
	{"virtual_server",
		`lb_algo lvs_sched lb_kind lvs_method protocol snmp_name weight flag-1 flag-2 sh-port sh-fallback
		persistence_timeout persistence_granularity real_server sorry_server sorry_server_lvs_method
		delay_loop connect_timeout retry delay_before_retry virtualhost`,
		`flag-3 mh-port mh-fallback hashed ops persistence_engine quorum hysteresis sorry_server_inhibit ip_family ha_suspend omega quorum_up
		quorum_down alpha inhibit_on_failure warmup smtp_alert`},
	{"real_server", "weight lvs_method uthreshold lthreshold delay_loop connect_timeout retry delay_before_retry virtualhost TCP_CHECK HTTP_GET SSL_GET PING_CHECK",
		`snmp_name notify_up notify_down alpha inhibit_on_failure warmup smtp_alert
		MISC_CHECK SMTP_CHECK UDP_CHECK DNS_CHECK BFD_CHECK FILE_CHECK`},
	{"TCP_CHECK", "connect_port connect_timeout delay_loop retry delay_before_retry",
		"nb_get_retry connect_ip bindto bind_if bind_port fwmark warmup alpha log_all_failures"},
	{"HTTP_GET", "url virtualhost nb_get_retry", "http_protocol fast_recovery enable_sni sni_name tls_compliant"},
	{"url", "path status_code virtualhost", "digest regex regex_no_match regex_options regex_stack regex_min_offset regex_max_offset tls_compliant"},
	{"SMTP_CHECK", "connect_port host", "helo_name connect_ip"},
	{"host", "connect_port", "connect_ip bindto bind_port"},
	{"UDP_CHECK", "payload", "min_reply_length max_reply_length"},
	{"MISC_CHECK", "misc_timeout", "misc_dynamic user"},
	// Words that are about keepalived itself are left out with the block.
	{"global_defs", `router_id lvs_id smtp_alert_vrrp no_email_faults checker_log_all_failures default_interface dynamic_interfaces
		process_names process_name vrrp_process_name checker_process_name lvs_process_name bfd_process_name use_symlink_paths
		set_supplementary_groups instance use_pid_dir namespace_with_ipsets child_wait_time linkbeat_use_polling umask max_auto_priority
		min_auto_priority_delay random_seed include_check config_save_dir tmp_config_directory data_use_instance reload_check_config
		reload_time_file reload_repeat reload_file json_version iproute_usr_dir iproute_etc_dir state_dump_file stats_dump_file state_file_location stats_file_location json_file_location
		json_dump_file disable_local_igmp v3_checksum_as_v2 nftables nftables_priority nftables_ifindex nftables_counters nftables_ipvs
		nftables_ipvs_priority nftables_ipvs_start_fwmark vrrp_mcast_group4 vrrp_mcast_group6 vrrp_garp_master_delay
		vrrp_garp_master_repeat vrrp_garp_master_refresh vrrp_garp_master_refresh_repeat vrrp_garp_lower_prio_delay
		vrrp_garp_lower_prio_repeat vrrp_down_timer_adverts vrrp_garp_interval vrrp_gna_interval vrrp_min_garp vrrp_garp_extra_if
		vrrp_vmac_garp_intvl vrrp_lower_prio_no_advert vrrp_higher_prio_send_advert vrrp_version vrrp_iptables vrrp_ipsets
		vrrp_check_unicast_src vrrp_skip_check_adv_addr vrrp_strict vrrp_priority vrrp_no_swap vrrp_rt_priority vrrp_cpu_affinity
		vrrp_rlimit_rttime vrrp_rlimit_rtime vrrp_notify_fifo vrrp_notify_fifo_script vrrp_notify_priority_changes
		fifo_write_vrrp_states_on_reload bfd_priority bfd_no_swap bfd_rt_priority bfd_cpu_affinity bfd_rlimit_rttime bfd_rlimit_rtime
		snmp_socket enable_traps enable_snmp_vrrp enable_snmp_keepalived enable_snmp_rfc enable_snmp_rfcv2 enable_snmp_rfcv3
		snmp_vs_stats_update_interval snmp_rs_stats_update_interval enable_dbus dbus_service_name dbus_no_interface_name
		vrrp_netlink_cmd_rcv_bufs vrrp_netlink_cmd_rcv_bufs_force vrrp_netlink_monitor_rcv_bufs vrrp_netlink_monitor_rcv_bufs_force
		lvs_netlink_cmd_rcv_bufs lvs_netlink_cmd_rcv_bufs_force lvs_netlink_monitor_rcv_bufs lvs_netlink_monitor_rcv_bufs_force
		process_monitor_rcv_bufs process_monitor_rcv_bufs_force vrrp_rx_bufs_policy vrrp_rx_bufs_multiplier vrrp_startup_delay
		vrrp_delay_after_boot log_unknown_vrids vrrp_owner_ignore_adverts vmac_prefix vmac_addr_prefix`,
		`lvs_timeouts lvs_sync_daemon lvs_flush lvs_flush_on_stop lvs_flush_onstop net_namespace net_namespace_ipvs script_user
		enable_script_security rs_init_notifies enable_snmp_checker checker_priority checker_no_swap checker_rt_priority
		checker_cpu_affinity checker_rlimit_rttime checker_rlimit_rtime lvs_notify_fifo lvs_notify_fifo_script notify_fifo
		notify_fifo_script startup_script startup_script_timeout shutdown_script shutdown_script_timeout notification_email
		notification_email_from smtp_server smtp_helo_name smtp_connect_timeout smtp_alert smtp_alert_checker no_checker_emails`},
}

// surroundings is a file with a block, which has %s on a line of its own.
var surroundings = func() map[string]string {
	service := "virtual_server 10.0.0.1 80 {\nprotocol TCP\nlb_algo sh\n%s\n}"
	in := func(outer, begin, end string) string { return fmt.Sprintf(outer, begin+"\n%s\n"+end) }
	server := in(service, "real_server 10.1.0.1 80 {", "}")
	check := func(begin string) string { return in(server, begin, "}") }
	http := check("HTTP_GET {\ndelay_before_retry 60")
	return map[string]string{
		"":               "%s",
		"virtual_server": in(service, "real_server 10.1.0.1 80 {\n}\nsorry_server 10.1.0.8", ""),
		"real_server":    server,
		"TCP_CHECK":      check("TCP_CHECK {\ndelay_before_retry 60"),
		"HTTP_GET":       http,
		"url":            in(http, "url {", "}"),
		"SMTP_CHECK":     check("SMTP_CHECK {\ndelay_before_retry 60"),
		"host":           check("SMTP_CHECK {\ndelay_before_retry 60\nhost {\n%s\n}"),
		"UDP_CHECK":      check("UDP_CHECK {\nrequire_reply 61\ndelay_before_retry 60"),
		"MISC_CHECK":     check("MISC_CHECK {\nmisc_path /bin/true"),
		"global_defs":    "global_defs {\n%s\n}\n",
	}
}()

// values follow words, in place of 7.
var values = map[string]string{
	"lb_algo": "rr", "lvs_sched": "wrr", "lb_kind": "DR", "lvs_method": "NAT", "sorry_server_lvs_method": "TUN type ipip", "protocol": "UDP",
	"flag-1": "", "flag-2": "", "sh-port": "", "sh-fallback": "", "persistence_granularity": "255.255.255.255",
	"virtual_server":       "10.9.0.1 80 {\nprotocol TCP\nreal_server 10.1.0.1 80 {\n}\n}",
	"virtual_server_group": "G {\n10.0.0.1 80\n}",
	"real_server":          "10.1.0.9 {\n}", "sorry_server": "10.1.0.9", "weight": "9",
	"delay_before_retry": "60", "TCP_CHECK": "{\ndelay_before_retry 60\n}", "HTTP_GET": "{\ndelay_before_retry 60\n}", "SSL_GET": "{\ndelay_before_retry 60\n}",
	"PING_CHECK": "{\ndelay_before_retry 60\n}", "MISC_CHECK": "{\n}", "SMTP_CHECK": "{\ndelay_before_retry 60\n}", "UDP_CHECK": "{\ndelay_before_retry 60\n}",
	"DNS_CHECK": "{\n}", "url": "{\n}", "host": "{\n}", "path": "/x", "status_code": "200-299", "payload": "61 62", "virtualhost": "shop.example",
	"quorum": "2", "warmup": "9",
}

// Each word of the manual is taken over, or a note on its line says that it is not, and why.
func TestKeepalivedManual(t *testing.T) {
	for _, m := range manual {
		for _, word := range strings.Fields(m.taken) {
			if notes, _ := noted(t, m.block, word); len(notes) > 0 {
				t.Errorf("%s of %s, which is taken over: %v", word, m.block, notes)
			}
		}
		for _, word := range strings.Fields(m.named) {
			notes, _ := noted(t, m.block, word)
			if len(notes) != 1 || !strings.HasPrefix(notes[0].What, word) || strings.Contains(notes[0].Why, unknownWord) {
				t.Errorf("%s of %s, which is left out: %v", word, m.block, notes)
			}
		}
		notes, _ := noted(t, m.block, "bogus")
		if len(notes) != 1 || !strings.HasPrefix(notes[0].What, "bogus") || !strings.Contains(notes[0].Why, unknownWord) {
			t.Errorf("bogus of %s: %v", m.block, notes)
		}
	}
}

// noted returns what is said of the line of a word in a block.
func noted(t *testing.T, block, word string) (notes []Note, doc keys.Object) {
	t.Helper()
	value, has := values[word]
	if !has {
		value = "7"
	}
	before, after, _ := strings.Cut(surroundings[block], "%s")
	conf := before + word + " " + value + after
	doc, all, err := Keepalived(strings.NewReader(conf), Options{IPVS: true})
	if err != nil && !strings.Contains(err.Error(), "nothing of this file") && !strings.Contains(err.Error(), "there are none") {
		t.Errorf("%s: %v", conf, err)
	}
	for _, n := range all {
		if n.Line == strings.Count(before, "\n")+1 && strings.HasPrefix(n.What, word) {
			notes = append(notes, n)
		}
	}
	return notes, doc
}

// Words that keepalived does not read are named, with how many it does read.
func TestKeepalivedSurplusWords(t *testing.T) {
	for words, why := range map[string]string{
		"sh-port 6":  "6 7 is left out, as with keepalived, which reads no words after sh-port",
		"retry 3":    "7 is left out, as with keepalived, which reads 1 word after retry",
		"lb_algo rr": "7 is left out, as with keepalived, which reads 1 word after lb_algo",
	} {
		if notes, _ := noted(t, "virtual_server", words); len(notes) != 1 || notes[0].Why != why {
			t.Errorf("%s: %v, want %s", words, notes, why)
		}
	}
}
