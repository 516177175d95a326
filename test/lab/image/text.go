package image

// The suite runs as these users, some of which its own images have.
const (
	passwd = `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
nginx:x:101:101:nginx:/nonexistent:/usr/sbin/nologin
redis:x:999:999:redis:/data:/usr/sbin/nologin
user-defined-in-image:x:1000:1000::/:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`
	group = `root:x:0:
daemon:x:1:
tty:x:5:
www-data:x:33:
nginx:x:101:
redis:x:999:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nogroup:x:65534:
`
)

// iperf runs that of another release of Debian, with the libraries of that.
const iperf = `#!/bin/sh
exec /opt/iperf/usr/lib/*/ld-linux-*.so.* --library-path "$(echo /opt/iperf/usr/lib/*-linux-gnu*)" /opt/iperf/usr/bin/iperf "$@"
`

// entrypoint runs the command that follows a program's name, or the program, if that is no command
// but the program's arguments.
const entrypoint = `#!/bin/sh
program=$1
shift
case "${1:-}" in
"" | -*) set -- "$program" "$@" ;;
*) command -v "$1" >/dev/null || set -- "$program" "$@" ;;
esac
exec "$@"
`

// Manifests mount their files where nginx's own image has them.
const (
	nginxConf = `user www-data;
worker_processes auto;
error_log /var/log/nginx/error.log notice;
pid /run/nginx.pid;

events {
	worker_connections 1024;
}

http {
	include /etc/nginx/mime.types;
	default_type application/octet-stream;
	access_log /var/log/nginx/access.log;
	include /etc/nginx/conf.d/*.conf;
}
`
	nginxSite = `server {
	listen 80;
	listen [::]:80;
	server_name localhost;
	location / {
		root /usr/share/nginx/html;
		index index.html index.htm;
	}
}
`
)

// Files and names are where Apache's own image has them.
const (
	httpdConf = `ServerRoot /usr/local/apache2
ServerName localhost
Listen 80
PidFile /run/httpd.pid
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
User www-data
Group www-data
TypesConfig /etc/nginx/mime.types
DocumentRoot /usr/local/apache2/htdocs
DirectoryIndex index.html
LogFormat "%h %l %u %t \"%r\" %>s %b" common
CustomLog /dev/stdout common
ErrorLog /dev/stderr
<Directory />
	AllowOverride None
	Require all denied
</Directory>
<Directory /usr/local/apache2/htdocs>
	Require all granted
</Directory>
`
	httpdForeground = `#!/bin/sh
exec apache2 -f /usr/local/apache2/conf/httpd.conf -DFOREGROUND "$@"
`
)

// Redis of Debian lets only its own host in unless it is told otherwise; that of its own image lets
// in everyone.
const redisServer = `#!/bin/sh
case "${1:-}" in
-v | --version | -h | --help) exec /usr/bin/redis-server "$@" ;;
"" | -*) exec /usr/bin/redis-server --protected-mode no "$@" ;;
esac
conf=$1
shift
exec /usr/bin/redis-server "$conf" --protected-mode no "$@"
`
